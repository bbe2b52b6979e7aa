"""Engine commands among the words of a shell script or a container's command."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from tidegate.engines.scripts.found import Container, FoundLaunch, Variable, Word
from tidegate.engines.scripts.lexer import Lexer, Statement

_ASSIGNED: Final = re.compile(r"([A-Za-z_]\w*)=")
_MODULES: Final = {
    "vllm.entrypoints.openai.api_server": "vllm",
    "vllm.entrypoints.api_server": "vllm",
    "sglang.launch_server": "sglang",
}
_SERVE: Final = {"vllm": "vllm", "vllm.entrypoints.cli.main": "vllm", "sglang": "sglang", "sglang.cli.main": "sglang"}
_RUNTIMES: Final = ("docker", "podman", "nerdctl")
_VALUED: Final = frozenset(
    ("-e", "--env", "-v", "--volume", "-p", "--publish", "--name", "--gpus", "--shm-size", "--ipc", "--network",
     "--net", "--restart", "--runtime", "--memory", "-m", "--cpus", "--user", "-u", "--workdir", "-w", "--entrypoint",
     "--env-file", "--mount", "--device", "--ulimit", "--label", "-l", "--hostname", "-h", "--cap-add",
     "--security-opt", "--log-opt", "--log-driver", "--stop-timeout", "--stop-signal", "--platform", "--pull", "--pid",
     "--add-host", "--group-add", "--cpuset-cpus", "--memory-swap", "--tmpfs", "--health-cmd", "--volumes-from")
)  # fmt: skip
"""Options of `docker run` whose value is the next word."""


def launches_in_shell(source: str, start: int = 0, end: int | None = None, folded: bool = False) -> list[FoundLaunch]:
    """The engine commands in a range of shell text, with the environment the script gave them."""
    exported: list[Variable] = []
    found: list[FoundLaunch] = []
    for words in Lexer(source, start, end, folded).statements():
        own, rest = _assignments(source, words)
        if not rest or rest[0].text in ("export", "declare"):
            exported += _assignments(source, rest[1:], words)[0] if rest else own
            continue
        launch = find_launch(source, rest)
        if launch is not None:
            # What a script exports stays outside of a container it starts.
            outer = () if launch.container is not None else (*exported, *own)
            found.append(msgspec.structs.replace(launch, env=(*outer, *launch.env)))
    return found


def find_launch(source: str, words: list[Word]) -> FoundLaunch | None:
    """The engine command a list of words starts, directly, in `docker run` or inside `sh -c "…"`."""
    runtime = next((i for i, word in enumerate(words) if word.text in _RUNTIMES and _at(words, i + 1) == "run"), None)
    if runtime is not None:
        return _in_container(source, words[runtime + 2 :])
    direct = _direct(words)
    if direct is not None:
        return direct
    for index, word in enumerate(words[:-1]):
        if word.text in ("-c", "-lc", "-ec") and words[index + 1].known:
            return _quoted(source, words[index + 1])
    return None


def _direct(words: list[Word]) -> FoundLaunch | None:
    own: list[Variable] = []
    for index, word in enumerate(words):
        name = word.text.rpartition("/")[2] if "/" in word.text else word.text
        if _at(words, index - 1) == "-m" and name in _MODULES:
            return FoundLaunch(_MODULES[name], name, word, tuple(words[index + 1 :]), tuple(own), "shell")
        if name in _SERVE and _at(words, index + 1) == "serve":
            engine = _SERVE[name]
            return FoundLaunch(engine, f"{engine} serve", word, tuple(words[index + 2 :]), tuple(own), "shell")
        match = _ASSIGNED.match(word.text)
        if match:
            own.append(_variable(word, match, word.start, word.end))
    return None


def _quoted(source: str, word: Word) -> FoundLaunch | None:
    """A command kept in one quoted word; its own words are placed only where the quotes hide no escapes."""
    raw = source[word.start : word.end]
    if len(raw) < 2 or raw[0] not in "'\"":
        return None
    found = launches_in_shell(source, word.start + 1, word.end - 1)
    return found[0] if found else None


def _in_container(source: str, words: list[Word]) -> FoundLaunch | None:
    env: list[Variable] = []
    shm = False
    entrypoint = ""
    index = 0
    while index < len(words) and words[index].text.startswith("-"):
        name, equals, value = words[index].text.partition("=")
        takes_next = not equals and name in _VALUED
        word = words[index + 1] if takes_next and index + 1 < len(words) else words[index]
        value = word.text if takes_next else value
        if name in ("-e", "--env") and _ASSIGNED.match(value):
            env.append(_container_variable(word, value, words[index].start))
        shm = shm or name == "--shm-size" or (name == "--ipc" and value == "host")
        entrypoint = value if name == "--entrypoint" else entrypoint
        index += 2 if takes_next else 1
    if index >= len(words):
        return None
    container = Container("docker", words[index].text, shm)
    launch = find_launch(source, words[index + 1 :]) or by_image(container.image, words[index + 1 :], entrypoint)
    if launch is None:
        return None
    return msgspec.structs.replace(launch, env=(*env, *launch.env), container=container)


def by_image(image: str, words: list[Word], entrypoint: str = "") -> FoundLaunch | None:
    """The command of a vLLM image that is started by the image's own entry point: the words are its options."""
    if "vllm" not in image or entrypoint not in ("", "vllm") or (words and "/" in words[0].text and len(words) == 1):
        return None
    if not any(word.text.startswith("--") for word in words):
        return None
    return FoundLaunch("vllm", "image", None, tuple(words), (), "shell")


def _assignments(source: str, words: Statement, statement: Statement | None = None) -> tuple[list[Variable], Statement]:
    """The `A=b` words a statement begins with, and the rest. Removing the only one removes the whole statement."""
    found: list[Variable] = []
    for index, word in enumerate(words):
        match = _ASSIGNED.match(word.text)
        if match is None or not source.startswith(match.group(0), word.start):
            return found, words[index:]
        whole = statement if statement is not None and len(words) == 1 else [word]
        found.append(_variable(word, match, whole[0].start, whole[-1].end))
    return found, []


def _variable(word: Word, match: re.Match[str], start: int, end: int) -> Variable:
    value_start = word.start + match.end()
    return Variable(match.group(1), word.text[match.end() :], start, end, value_start, word.end, word.known)


def _container_variable(word: Word, value: str, start: int) -> Variable:
    name, _, text = value.partition("=")
    return Variable(name, text, start, word.end, word.end - len(text), word.end, word.known)


def _at(words: list[Word], index: int) -> str:
    return words[index].text if 0 <= index < len(words) else ""
