"""Launch scripts: one bash script an instance, with the lock's options and a comment on each.

In: a lock. Out: scripts in strict mode that check what they can before the engine loads for minutes (its version,
the model's folder), export the environment, and exec, so that signals and exit codes are the engine's own. They take
no arguments: what is added by hand is what drifts.
"""

from __future__ import annotations

import re
import shlex
from typing import Final

from tidegate.deploy.place import Place, origin, places
from tidegate.engines.launch import WORDS
from tidegate.spec import EngineProfile
from tidegate.spec.fields import sections
from tidegate.spec.lock import Lock

MODULES: Final = {"vllm": "vllm.entrypoints.openai.api_server", "sglang": "sglang.launch_server"}
OPEN_FILES: Final = 65536
"""Fewer get a warning: a stream is a socket."""
_PROFILE_FIELDS: Final = {"quantization": "weights"}
_OTHERS: Final = {
    "--model": "The model: a path, or a hub name.",
    "--model-path": "The model: a path, or a hub name.",
    "--served-model-name": "What clients call it.",
    "--enable-prefix-caching": "KV blocks of equal prompt beginnings are reused.",
    "--no-enable-prefix-caching": "No reuse of KV blocks.",
    "--disable-radix-cache": "No reuse of KV blocks.",
    "--enable-chunked-prefill": "Long prompts are computed in chunks between decode steps.",
    "--shutdown-timeout": "After SIGTERM, how long streams may go on; without it they are cut.",
    "--enable-metrics": "Without it there is no /metrics, and the gateway sees nothing.",
    "--enable-log-requests": "Every request is logged: costs CPU time and disk.",
    "--disable-log-requests": "Requests are not logged.",
}
_PARENTHESES: Final = re.compile(r" \([^)]*\)")
_LINE: Final = 100

HEAD: Final = """\
#!/usr/bin/env bash
# {name}: {kind} {version} serving {model} on {gpus} GPU(s).
# Rendered from tidegate.lock {origin}.
# Change the lock, not this script: `tidegate verify` reports what differs.
set -euo pipefail

fail() {{ printf 'error: %s\\n' "$1" >&2; exit 3; }}

(( $# == 0 )) || fail "this script takes no arguments; the lock says what runs"
python=${{TIDEGATE_PYTHON:-python3}}
command -v "$python" >/dev/null || fail "$python is not installed; set TIDEGATE_PYTHON"

# The engine of the lock, no other: options and defaults change between versions.
installed=$("$python" -c 'import importlib.metadata as m; print(m.version("{kind}"))') ||
  fail "{kind} is not installed beside $python"
[[ "$installed" == {version_word} || "$installed" == {version_word}[+.]* ]] ||
  fail "{kind} $installed is installed, and the lock says {version}"
"""


def launch_scripts(lock: Lock) -> dict[str, str]:
    """Every instance's script, by file name."""
    return {f"launch/{place.stem}.sh": launch_script(lock, place) for place in places(lock)}


def launch_script(lock: Lock, place: Place) -> str:
    """One instance's script."""
    engine = place.engine
    parts = [
        HEAD.format(
            name=place.name,
            kind=engine.kind,
            version=engine.version,
            version_word=shlex.quote(engine.version),
            model=engine.model,
            gpus=len(place.gpus),
            origin=origin(lock),
        ),
        *_model_check(engine.path),
        *_environment(lock, place),
        "# A stream is a socket: the usual 1,024 files end under a peak.",
        'ulimit -Sn "$(ulimit -Hn)"',
        f'[[ "$(ulimit -n)" == unlimited ]] || (( $(ulimit -n) >= {OPEN_FILES} )) ||',
        f"  printf 'warning: %s files may be open, {OPEN_FILES} are advised\\n' \"$(ulimit -n)\" >&2",
        "",
        *_arguments(place),
        "# exec: signals reach the engine, and its exit code is this script's.",
        f'exec "$python" -m {MODULES[engine.kind]} "${{args[@]}}"',
    ]
    return "\n".join(parts) + "\n"


def about(option: str, kind: str) -> str:
    """One sentence on an option, empty where none is known."""
    if option in _OTHERS:
        return _OTHERS[option]
    field = next((name for name, words in WORDS.items() if words[kind] == option), "")
    keys = {key.name: key.about for section in sections(EngineProfile) for key in section.keys}
    return _PARENTHESES.sub("", keys.get(_PROFILE_FIELDS.get(field, field), ""))


def _model_check(path: str) -> list[str]:
    if not path.startswith("/"):
        return []
    return [f'[[ -e {shlex.quote(path)} ]] || fail "the model is not there: "{shlex.quote(path)}', ""]


def _environment(lock: Lock, place: Place) -> list[str]:
    lines = ["# Environment."]
    for each in place.engine.env:
        name, _, value = each.partition("=")
        lines.append(f"export {name}={shlex.quote(value)}")
    listed = ",".join(str(number) for number in place.gpus)
    return [
        *lines,
        f"export CUDA_VISIBLE_DEVICES={listed}  # this instance's share of the host's GPUs",
        f"export TIDEGATE_LOCK={lock.hash}  # lets `tidegate verify` know what it looks at",
        "",
    ]


def _arguments(place: Place) -> list[str]:
    lines = ["args=("]
    for option in place.engine.options:
        words = shlex.split(option)
        lines += _commented(about(words[0], place.engine.kind))
        lines.append(f"  {shlex.join(words)}")
    lines += ["  # Where it listens.", f"  --host {place.bind}", f"  --port {place.port}", ")", ""]
    return lines


def _commented(text: str) -> list[str]:
    """A comment, wrapped."""
    lines: list[str] = []
    for word in text.split():
        if lines and len(lines[-1]) + 1 + len(word) <= _LINE:
            lines[-1] += f" {word}"
        else:
            lines.append(f"  # {word}")
    return lines
