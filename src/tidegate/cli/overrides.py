"""`--set key=value`: a `tidegate.yaml` with single values replaced, checked like the file itself."""

from __future__ import annotations

import os

import yaml

from tidegate.errors import BadInputError
from tidegate.spec import ClusterSpec, load_spec
from tidegate.spec.document import compose, read_text
from tidegate.spec.load import parse_spec

HINT = "write --set gateway.queue.max_wait=1s or --set engine.step_tokens=768 (engine.* goes to every pool)"


def load_with(path: str | os.PathLike[str], assignments: list[str]) -> ClusterSpec:
    """The cluster at `path` with `assignments` (`key=value`) applied in turn. `engine.*` sets every pool's engine.

    Raises `SpecError` for what the file or a value does not allow, and `BadInputError` for no assignment at all.
    """
    if not assignments:
        return load_spec(path)
    source = os.fspath(path)
    root = compose(read_text(path), source)
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        words = key.strip().split(".")
        if not equals or not all(words):
            raise BadInputError(f"--set {assignment!r} is no assignment", hint=HINT)
        for target in _targets(root, words, assignment):
            _assign(target[0], target[1], value, assignment)
    return parse_spec(yaml.serialize(root), f"{source} with --set")


def _targets(root: yaml.Node, words: list[str], assignment: str) -> list[tuple[yaml.Node, list[str]]]:
    if words[0] != "engine":
        return [(root, words)]
    pools = _child(root, "pools")
    if not isinstance(pools, yaml.SequenceNode):
        raise BadInputError(f"--set {assignment!r}: the file has no pools", hint=HINT)
    return [(pool, words) for pool in pools.value]


def _assign(node: yaml.Node, words: list[str], value: str, assignment: str) -> None:
    for word in words[:-1]:
        below = _child(node, word)
        if below is None:
            below = yaml.MappingNode("tag:yaml.org,2002:map", [])
            _put(node, word, below, assignment)
        node = below
    try:
        wanted = yaml.compose(value)
    except yaml.YAMLError as exc:
        raise BadInputError(f"--set {assignment!r}: the value is no YAML", hint=HINT) from exc
    _put(node, words[-1], wanted or yaml.ScalarNode("tag:yaml.org,2002:null", ""), assignment)


def _child(node: yaml.Node, word: str) -> yaml.Node | None:
    if isinstance(node, yaml.SequenceNode) and word.isdigit() and int(word) < len(node.value):
        found: yaml.Node = node.value[int(word)]
        return found
    if isinstance(node, yaml.MappingNode):
        return next((value for key, value in node.value if key.value == word), None)
    return None


def _put(node: yaml.Node, word: str, value: yaml.Node, assignment: str) -> None:
    if not isinstance(node, yaml.MappingNode):
        raise BadInputError(f"--set {assignment!r}: there is nothing called {word!r} to set", hint=HINT)
    kept = [(key, old) for key, old in node.value if key.value != word]
    node.value = [*kept, (yaml.ScalarNode("tag:yaml.org,2002:str", word), value)]
