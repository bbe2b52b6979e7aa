"""One YAML scalar into the value its field wants.

In: a scalar node and the field's type as `msgspec.inspect` sees it. Out: float, int, bool or str in base units.
Errors: `ValueError` with one sentence: what is expected, what was read, how to write it. The node's own text is
read, not what YAML 1.1 would make of it.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable
from typing import Any, Final

import yaml
from msgspec import inspect as shape

from tidegate import units
from tidegate.spec.problem import shown

UNIT_PARSERS: Final[dict[str, Callable[[Any], float]]] = {
    "duration": units.parse_duration_s,
    "bytes": units.parse_bytes,
    "count": units.parse_count,
    "fraction": units.parse_fraction,
    "rate": units.parse_rate_per_s,
}
UNIT_NAMES: Final = {
    "duration": "a duration like 800ms",
    "bytes": "a size like 64MiB",
    "count": "a whole number like 512 or 8k",
    "fraction": "a fraction like 0.2 or 20%",
    "rate": "a rate like 20 or 90/min",
    "": "a number",
}
UNIT_WRITERS: Final[dict[str, Callable[[Any], str]]] = {
    "duration": units.write_duration,
    "bytes": units.write_bytes,
    "count": str,
    "fraction": units.write_number,
    "rate": units.write_number,
    "": units.write_number,
}
_DECIMAL: Final = re.compile(r"[-+]?([0-9][0-9_]*(\.[0-9_]*)?|\.[0-9][0-9_]*)([eE][-+]?[0-9]+)?")
_OCTAL_OR_HEX: Final = re.compile(r"[-+]?0[0-9xXbBoO_][0-9A-Fa-f_]*")
_BOOLEAN: Final = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_YAML11_TRUE: Final = ("y", "yes", "on")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_KINDS: Final = {
    "null": "nothing",
    "bool": "a true/false value",
    "int": "a number",
    "float": "a number",
    "timestamp": "a date",
}


def convert(node: yaml.ScalarNode, wanted: shape.Type, unit: str, expects: str) -> Any:
    """The value of `node` for a field of type `wanted`; `unit` and `expects` are the type's own marks."""
    if isinstance(wanted, shape.BoolType):
        return _boolean(node)
    if isinstance(wanted, shape.StrType):
        return _text(node, wanted, expects)
    if isinstance(wanted, shape.LiteralType):
        return _choice(node, wanted.values)
    if isinstance(wanted, shape.IntType | shape.FloatType):
        return _number(node, wanted, unit)
    raise AssertionError(f"a spec field has a type that no YAML scalar fits: {wanted}")


def describe(node: yaml.Node) -> str:
    """What a node is, for the end of `expected …, got …`."""
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    if isinstance(node, yaml.MappingNode):
        return "a mapping"
    kind = _kind(node)
    if kind == "null":
        return "nothing"
    return f"{_KINDS.get(kind, 'the text')} {shown(node.value) if kind not in _KINDS else node.value}"


def is_null(node: yaml.Node) -> bool:
    """Whether the document says nothing here (`key:` or `key: null`)."""
    return isinstance(node, yaml.ScalarNode) and _kind(node) == "null"


def suggestion(word: str, known: Iterable[str]) -> str:
    """`did you mean …?` when one of `known` is close to `word`, else nothing."""
    close = difflib.get_close_matches(word.replace("-", "_").lower()[:80], list(known), 1, 0.6)
    return f"did you mean {close[0]!r}?" if close else ""


def _kind(node: yaml.Node) -> str:
    return str(node.tag).rpartition(":")[2]


def _is_plain(node: yaml.ScalarNode) -> bool:
    return node.style not in ("'", '"', "|", ">")


def _boolean(node: yaml.ScalarNode) -> bool:
    text = node.value
    if _is_plain(node) and text in _BOOLEAN:
        return _BOOLEAN[text]
    if _is_plain(node) and text.lower() in (*_YAML11_TRUE, "n", "no", "off"):
        meant = "true" if text.lower() in _YAML11_TRUE else "false"
        raise ValueError(f"expected true or false, got {text!r}, which YAML versions read differently; write {meant}")
    raise ValueError(f"expected true or false, got {describe(node)}")


def _text(node: yaml.ScalarNode, wanted: shape.StrType, expects: str) -> str:
    text: str = node.value
    kind = _kind(node)
    if kind == "null":
        raise ValueError(f"expected {expects or 'text'}, got nothing")
    if _is_plain(node) and kind in _KINDS:
        raise ValueError(f'expected text, but YAML reads {text} as {_KINDS[kind]}; put it in quotes: "{text}"')
    if _CONTROL.search(text):
        raise ValueError(f"{shown(text)} holds a line break or control character; keep it on one line")
    if wanted.pattern is not None and re.search(wanted.pattern, text) is None:
        raise ValueError(f"{shown(text)} is not {expects or 'of the form ' + wanted.pattern}")
    return text


def _choice(node: yaml.ScalarNode, values: tuple[Any, ...]) -> Any:
    for value in values:
        if node.value == str(value) and (isinstance(value, str) or _is_plain(node)):
            return value
    names = [str(value) for value in values]
    expected = names[0] if len(names) == 1 else "one of " + ", ".join(names)
    hint = suggestion(node.value, names)
    raise ValueError(f"expected {expected}, got {describe(node)}" + (f"; {hint}" if hint else ""))


def _number(node: yaml.ScalarNode, wanted: shape.IntType | shape.FloatType, unit: str) -> float:
    written = _written(node, unit)
    if unit:
        value = UNIT_PARSERS[unit](written)
    elif isinstance(written, str):
        raise ValueError(f"expected a number, got {describe(node)}")
    else:
        value = written
    if isinstance(wanted, shape.IntType):
        value = units.parse_count(value)
    else:
        value = float(value)
    _check_range(value, wanted, unit)
    return value


def _written(node: yaml.ScalarNode, unit: str) -> str | float:
    """The scalar as a number where it is a bare decimal, else as text; refuses what YAML 1.1 would twist."""
    text: str = node.value.strip()
    kind = _kind(node)
    wanted = UNIT_NAMES[unit]
    if not _is_plain(node):
        return text
    if kind in ("null", "bool", "timestamp"):
        raise ValueError(f"expected {wanted}, got {describe(node)}")
    if ":" in text and kind in ("int", "float"):
        example = "; write minutes and seconds as 1m30s" if unit == "duration" else ""
        raise ValueError(f"expected {wanted}, got {text}, which YAML 1.1 reads in base 60{example}")
    if _OCTAL_OR_HEX.fullmatch(text):
        raise ValueError(f"expected {wanted}, got {text}, which is not a plain decimal number")
    if _DECIMAL.fullmatch(text):
        return _decimal(text)
    if kind in ("int", "float"):
        raise ValueError(f"expected {wanted}, got {text}, which is not a finite decimal number")
    return text


def _decimal(text: str) -> float:
    digits = text.replace("_", "")
    if len(digits) > 40:
        raise ValueError(f"{shown(text)} has too many digits")
    if digits.lstrip("+-").isdigit():
        return int(digits)
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{shown(text)} is too large")
    return value


def _check_range(value: float, wanted: shape.IntType | shape.FloatType, unit: str) -> None:
    gt, ge, lt, le = wanted.gt, wanted.ge, wanted.lt, wanted.le
    limit = ""
    write = UNIT_WRITERS[unit]
    if gt is not None and value <= gt:
        limit = f"more than {write(gt)}"
    elif ge is not None and value < ge:
        limit = f"at least {write(ge)}"
    elif lt is not None and value >= lt:
        limit = f"less than {write(lt)}"
    elif le is not None and value > le:
        limit = f"at most {write(le)}"
    if limit:
        raise ValueError(f"must be {limit}, got {write(value)}")
