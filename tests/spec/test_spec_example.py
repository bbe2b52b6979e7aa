"""The example that `tidegate init` writes: complete, true about its defaults, and sound either way it can be used."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import resources
from typing import Any

import yaml
from msgspec import NODEFAULT

from tidegate.spec import parse_spec
from tidegate.spec.document import compose
from tidegate.spec.fields import Key, sections
from tidegate.spec.problem import child
from tidegate.spec.scalar import convert

TEXT = resources.files("tidegate.spec").joinpath("example.yaml").read_text(encoding="utf-8")
EVERYTHING = re.sub(r"^#(?=[a-z]|  )", "", TEXT, flags=re.MULTILINE)
"""The example with its optional parts switched on (`#` right before a key; prose has one space after its `#`)."""
KEYS: dict[str, Key] = {child(section.path, key.name): key for section in sections() for key in section.keys}


def settings(node: yaml.Node, path: str = "") -> Iterator[tuple[str, yaml.Node, int]]:
    """(path with list indexes left out, value, line number) of every key below `node`."""
    if isinstance(node, yaml.SequenceNode):
        for entry in node.value:
            yield from settings(entry, path + "[]")
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            assert key.start_mark is not None
            yield child(path, key.value), value, key.start_mark.line
            yield from settings(value, child(path, key.value))


def shown_once() -> dict[str, tuple[yaml.Node, str]]:
    """For every key in the example, where it stands first: its value and the comment beside it."""
    lines = EVERYTHING.splitlines()
    first: dict[str, tuple[yaml.Node, str]] = {}
    for path, value, line in settings(compose(EVERYTHING, "example.yaml")):
        first.setdefault(path, (value, lines[line].partition(" # ")[2]))
    return first


def value_of(key: Key, text: str) -> Any:
    """What `text` means as the value of `key`."""
    node = yaml.compose(text)
    assert isinstance(node, yaml.ScalarNode)
    return convert(node, key.type, key.unit, key.expects)


def test_it_loads_as_it_stands() -> None:
    spec = parse_spec(TEXT)
    assert [one.url for one in spec.pools[0].instances] == ["http://127.0.0.1:8001", "http://127.0.0.1:8002"]
    steady, pulse = spec.traffic.phases[:2]
    assert pulse.rate == 5 * steady.rate
    assert spec.traffic.lengths.long_share == 0.2


def test_it_loads_with_its_optional_parts_switched_on() -> None:
    without_phases = re.sub(r"^  phases:.*\n(    .*\n)+", "", EVERYTHING, flags=re.MULTILINE)
    spec = parse_spec(without_phases)
    assert spec.tenants[0].name == "search-team"
    assert spec.traffic.trace is not None
    assert spec.traffic.phases == []


def test_it_shows_every_key_there_is() -> None:
    assert set(shown_once()) == set(KEYS)


def test_it_says_of_every_key_whether_it_is_required_or_what_it_is_without() -> None:
    for path, (_, comment) in shown_once().items():
        key = KEYS[path]
        if key.required and path != "pools":
            assert comment.startswith("required."), path
        elif key.default is not NODEFAULT:
            assert comment.startswith("default is " if key.default_text == "none" else "default "), path


def test_what_it_says_of_defaults_is_true() -> None:
    checked = 0
    for path, (node, comment) in shown_once().items():
        stated = re.match(r"default (?!is )(\S+)", comment)
        if stated is not None:
            key = KEYS[path]
            assert value_of(key, stated.group(1).removesuffix(".")) == key.default, path
            assert value_of(key, node.value) == key.default, path
            checked += 1
    assert checked > 50


def test_it_fits_a_terminal() -> None:
    assert max(len(line) for line in TEXT.splitlines()) <= 120
