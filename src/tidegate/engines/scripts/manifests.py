"""Engine commands in compose files and Kubernetes manifests.

Every mapping with an `image` or a `command` is a candidate, wherever it stands: Deployments, StatefulSets, Jobs,
custom resources and compose services all hold containers of one of two forms.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import msgspec
import yaml

from tidegate.engines.scripts.found import Container, FoundLaunch, Variable, Word
from tidegate.engines.scripts.lexer import Lexer
from tidegate.engines.scripts.shell import by_image, find_launch, launches_in_shell
from tidegate.errors import BadInputError

_DEEPEST: Final = 60


class _Place:
    """What the mappings above a container say of it."""

    __slots__ = ("depth", "grace_s", "kubernetes", "visited")

    def __init__(self, visited: set[int]) -> None:
        self.depth = 0
        self.grace_s: float | None = None
        self.kubernetes = False
        self.visited = visited
        """Nodes seen in this document: aliases make a tree of a few lines endless."""

    def below(self) -> _Place:
        place = _Place(self.visited)
        place.depth = self.depth + 1
        place.grace_s = self.grace_s
        place.kubernetes = self.kubernetes
        return place


def launches_in_yaml(source: str, name: str) -> list[FoundLaunch]:
    """The engine commands in all documents of a YAML (or JSON) text. Raises BadInputError when it is not YAML."""
    try:
        documents = [node for node in yaml.compose_all(source, Loader=yaml.SafeLoader) if node is not None]
    except yaml.YAMLError as exc:
        mark = getattr(exc, "problem_mark", None)
        where = f"{name}:{mark.line + 1}" if mark is not None else name
        problem = str(getattr(exc, "problem", None) or "it does not parse")
        hint = "a Helm template must be rendered first: helm template CHART"
        raise BadInputError(f"{where}: this is not YAML: {problem}", hint=hint) from None
    except RecursionError:
        raise BadInputError(f"{name}: nested too deeply to be a manifest", hint="check the file") from None
    found: list[FoundLaunch] = []
    for document in documents:
        for mapping, place in _candidates(document, _Place(set())):
            launch = _launch(source, mapping, place)
            if launch is not None:
                found.append(launch)
    return found


def _candidates(node: yaml.Node, place: _Place) -> Iterator[tuple[dict[str, yaml.Node], _Place]]:
    if place.depth > _DEEPEST or id(node) in place.visited:
        return
    place.visited.add(id(node))
    below = place.below()
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _candidates(item, below)
    if not isinstance(node, yaml.MappingNode):
        return
    entries = _entries(node)
    grace = entries.get("terminationGracePeriodSeconds") or entries.get("stop_grace_period")
    below.grace_s = _seconds(grace) or place.grace_s
    if {"command", "args", "entrypoint"} & set(entries):
        yield entries, below
        return
    for key, value in entries.items():
        within = below.below()
        within.kubernetes = below.kubernetes or key in ("containers", "initContainers")
        yield from _candidates(value, within)


def _entries(node: yaml.MappingNode) -> dict[str, yaml.Node]:
    return {str(key.value): value for key, value in node.value if isinstance(key, yaml.ScalarNode)}


def _launch(source: str, entries: dict[str, yaml.Node], place: _Place) -> FoundLaunch | None:
    kubernetes = place.kubernetes or "args" in entries or isinstance(entries.get("env"), yaml.SequenceNode)
    image = _scalar(entries.get("image"))
    nodes = [entries.get(key) for key in (("command", "args") if kubernetes else ("entrypoint", "command"))]
    launch = _command(source, [node for node in nodes if node is not None], image)
    if launch is None:
        return None
    shm = "shm_size" in entries or _scalar(entries.get("ipc")) == "host" or _mounts_shm(entries)
    kind = "kubernetes" if kubernetes else "compose"
    env = _environment(source, entries.get("env") or entries.get("environment"))
    container = Container(kind, image, shm, place.grace_s)
    return msgspec.structs.replace(launch, env=(*env, *launch.env), container=container)


def _command(source: str, nodes: list[yaml.Node], image: str) -> FoundLaunch | None:
    words: list[Word] = []
    style = "flow"
    for node in nodes:
        if isinstance(node, yaml.ScalarNode):
            if len(nodes) == 1 and _is_text(node):
                found = _in_text(source, node)
                return found or by_image(image, _shell_words(source, node))
            words.append(_word(source, node))
        elif isinstance(node, yaml.SequenceNode):
            style = "flow" if node.flow_style else "block"
            words += [_word(source, item) for item in node.value if isinstance(item, yaml.ScalarNode)]
    for node in (item for one in nodes if isinstance(one, yaml.SequenceNode) for item in one.value):
        if isinstance(node, yaml.ScalarNode) and _is_text(node) and re.search(r"vllm|sglang", node.value):
            inside = _in_text(source, node)
            if inside is not None:
                return inside
    launch = find_launch(source, words) or by_image(image, words)
    return msgspec.structs.replace(launch, style=style) if launch is not None else None


def _is_text(node: yaml.ScalarNode) -> bool:
    """A whole command line in one scalar, not one word."""
    return " " in node.value.strip() or "\n" in node.value.strip()


def _in_text(source: str, node: yaml.ScalarNode) -> FoundLaunch | None:
    start, end = _inside(source, node)
    found = launches_in_shell(source, start, end, folded=node.style == ">" or node.style is None)
    return found[0] if found else None


def _shell_words(source: str, node: yaml.ScalarNode) -> list[Word]:
    start, end = _inside(source, node)
    return [word for statement in Lexer(source, start, end, folded=True).statements() for word in statement]


def _inside(source: str, node: yaml.ScalarNode) -> tuple[int, int]:
    """The range of a scalar's own text in the source: without quotes, without a block's header line."""
    start, end = node.start_mark.index, node.end_mark.index
    if node.style in ("|", ">"):
        return source.index("\n", start) + 1, end
    if node.style in ("'", '"'):
        return start + 1, end - 1
    return start, end


def _word(source: str, node: yaml.ScalarNode) -> Word:
    known = "{{" not in node.value and not re.search(r"\$[({A-Za-z]", node.value)
    return Word(node.value, node.start_mark.index, node.end_mark.index, known)


def _environment(source: str, node: yaml.Node | None) -> list[Variable]:
    found: list[Variable] = []
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and isinstance(value, yaml.ScalarNode):
                found.append(_pair(key, value, key.start_mark.index))
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            if isinstance(item, yaml.MappingNode):
                entries = _entries(item)
                name, value = entries.get("name"), entries.get("value")
                if isinstance(name, yaml.ScalarNode) and isinstance(value, yaml.ScalarNode):
                    found.append(_pair(name, value, item.start_mark.index))
            elif isinstance(item, yaml.ScalarNode) and "=" in item.value:
                name_text, _, text = item.value.partition("=")
                end = _inside(source, item)[1]
                start = item.start_mark.index
                found.append(Variable(name_text, text, start, item.end_mark.index, end - len(text), end))
    return found


def _pair(name: yaml.ScalarNode, value: yaml.ScalarNode, start: int) -> Variable:
    end = value.end_mark.index
    return Variable(str(name.value), str(value.value), start, end, value.start_mark.index, end)


def _scalar(node: yaml.Node | None) -> str:
    return str(node.value) if isinstance(node, yaml.ScalarNode) else ""


def _seconds(node: yaml.Node | None) -> float | None:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)s?", _scalar(node))
    return float(match.group(1)) if match else None


def _mounts_shm(entries: dict[str, yaml.Node]) -> bool:
    """Whether something is mounted at /dev/shm: Kubernetes' `volumeMounts`, compose's `volumes` and `tmpfs`."""
    mounts = entries.get("volumeMounts") or entries.get("volumes") or entries.get("tmpfs")
    items = mounts.value if isinstance(mounts, yaml.SequenceNode) else [mounts]
    texts = [_scalar(value) for item in items for value in (item, *_values(item))]
    return any("/dev/shm" in text for text in texts)


def _values(node: yaml.Node | None) -> list[yaml.Node]:
    return list(_entries(node).values()) if isinstance(node, yaml.MappingNode) else []
