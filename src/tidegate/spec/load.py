"""A `tidegate.yaml` into a `ClusterSpec`, or every problem in it.

In: a path or YAML text. Out: an immutable, fully defaulted `ClusterSpec` in base units. Errors: `SpecError` (a
`BadInputError`) with one line per problem: file, line, path, what is wrong, how to mend it. The walk goes down the
document and the types together; the rules that span fields run only when every field is sound by itself.
"""

from __future__ import annotations

import os
from typing import Any, Final, TypeVar

import msgspec
import yaml
from msgspec import inspect as shape

from tidegate.spec import document, scalar
from tidegate.spec.cluster import ClusterSpec
from tidegate.spec.problem import Problem, SpecError, child, item, shown
from tidegate.spec.rules import broken_rules

MAX_VALUES: Final = 100_000
"""Values a document may hold after its aliases are followed."""

_CLUSTER: Final = shape.type_info(ClusterSpec)
Document = TypeVar("Document", bound=msgspec.Struct)


def load_spec(path: str | os.PathLike[str]) -> ClusterSpec:
    """Reads and checks the file at `path`. Raises `SpecError` (exit code 3) when it cannot be used."""
    return parse_spec(document.read_text(path), os.fspath(path))


def parse_spec(text: str, source: str = "tidegate.yaml") -> ClusterSpec:
    """Checks YAML `text`; `source` is what messages call it. Raises `SpecError`."""
    walk = _Walk(source)
    data = walk.value(document.compose(text, source), _CLUSTER, "")
    if walk.problems:
        raise SpecError(walk.problems)
    try:
        spec = msgspec.convert(data, ClusterSpec)
    except msgspec.ValidationError as exc:
        raise SpecError([Problem(source=source, text=str(exc))]) from None
    findings = [walk.problem(path, text) for path, text in broken_rules(spec)]
    if findings:
        raise SpecError(findings)
    return spec


def parse_as(text: str, source: str, wanted: type[Document]) -> tuple[Document, dict[str, tuple[int, int]]]:
    """`text` as any document type, and where (line, column) each of its paths stands. Raises `SpecError`."""
    walk = _Walk(source)
    data = walk.value(document.compose(text, source), shape.type_info(wanted), "")
    if walk.problems:
        raise SpecError(walk.problems)
    try:
        return msgspec.convert(data, wanted), walk.places
    except msgspec.ValidationError as exc:
        raise SpecError([Problem(source=source, text=str(exc))]) from None


class _Walk:
    """One pass over a document: values out, problems and the place of every path kept."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.problems: list[Problem] = []
        self.places: dict[str, tuple[int, int]] = {}
        self._visited = 0

    def value(self, node: yaml.Node, wanted: shape.Type, path: str) -> Any:
        """What `node` means for type `wanted`; `None` where it is wrong (and a problem is noted)."""
        self._visited += 1
        if self._visited > MAX_VALUES:
            text = f"aliases make this document larger than {MAX_VALUES:,} values; write it without them"
            raise SpecError([Problem(source=self.source, text=text)])
        self.places.setdefault(path, _place(node))
        wanted, unit, expects = _unwrap(wanted)
        if isinstance(wanted, shape.UnionType):
            if scalar.is_null(node):
                return None
            wanted, unit, expects = _unwrap(_not_none(wanted))
        if isinstance(wanted, shape.StructType):
            return self._mapping(node, wanted, path)
        if isinstance(wanted, shape.ListType):
            return self._list(node, wanted, path)
        return self._scalar(node, wanted, unit, expects, path)

    def problem(self, path: str, text: str) -> Problem:
        """A problem at `path`, placed at the nearest path that the document holds."""
        nearest = path
        while nearest and nearest not in self.places:
            nearest = nearest[: max(nearest.rfind("."), nearest.rfind("["), 0)]
        line, column = self.places.get(nearest, (1, 1))
        return Problem(source=self.source, line=line, column=column, path=path, text=text)

    def _note(self, node: yaml.Node, path: str, text: str) -> None:
        line, column = _place(node)
        self.problems.append(Problem(source=self.source, line=line, column=column, path=path, text=text))

    def _scalar(self, node: yaml.Node, wanted: shape.Type, unit: str, expects: str, path: str) -> Any:
        if not isinstance(node, yaml.ScalarNode):
            self._note(node, path, f"expected {_name(wanted, unit, expects)}, got {scalar.describe(node)}")
            return None
        try:
            return scalar.convert(node, wanted, unit, expects)
        except ValueError as exc:
            self._note(node, path, str(exc))
            return None

    def _list(self, node: yaml.Node, wanted: shape.ListType, path: str) -> list[Any]:
        if not isinstance(node, yaml.SequenceNode):
            self._note(node, path, f"expected a list (lines that start with '- '), got {scalar.describe(node)}")
            return []
        if len(node.value) < (wanted.min_length or 0):
            self._note(node, path, f"needs at least {wanted.min_length} entry")
        return [self.value(entry, wanted.item_type, item(path, i)) for i, entry in enumerate(node.value)]

    def _mapping(self, node: yaml.Node, wanted: shape.StructType, path: str) -> dict[str, Any]:
        fields = {field.encode_name: field for field in wanted.fields}
        if not isinstance(node, yaml.MappingNode):
            keys = ", ".join(list(fields)[:4])
            self._note(node, path, f"expected a mapping with keys such as {keys}; got {scalar.describe(node)}")
            return {}
        values: dict[str, Any] = {}
        seen: dict[str, yaml.Node] = {}
        for key_node, value_node in node.value:
            key = self._key(key_node, seen, fields, path)
            if key is not None:
                self.places[child(path, key)] = _place(key_node)
                values[key] = self.value(value_node, fields[key].type, child(path, key))
        for name, field in fields.items():
            if field.required and name not in seen:
                self._note(node, path, f"missing key {name!r}")
        return values

    def _key(
        self, node: yaml.Node, seen: dict[str, yaml.Node], fields: dict[str, shape.Field], path: str
    ) -> str | None:
        """The field a key names, or `None` and a problem."""
        if not isinstance(node, yaml.ScalarNode):
            self._note(node, path, f"a key must be a word, not {scalar.describe(node)}")
            return None
        key: str = node.value
        if key == "<<":
            self._note(node, path, "merge keys (<<) are not supported; write the keys out or alias the whole value")
        elif key in seen:
            first = _place(seen[key])[0]
            self._note(node, path, f"key {shown(key)} was already given on line {first}; delete one")
        elif key not in fields:
            self._note(node, path, f"unknown key {shown(key)}; {_advice(key, fields)}")
        else:
            seen[key] = node
            return key
        return None


def _place(node: yaml.Node) -> tuple[int, int]:
    mark = node.start_mark
    return (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)


def _unwrap(wanted: shape.Type) -> tuple[shape.Type, str, str]:
    """A type without its marks, its unit, and how people are told to write it."""
    if isinstance(wanted, shape.Metadata):
        extra = wanted.extra or {}
        return wanted.type, extra.get("unit", ""), extra.get("expects", "")
    return wanted, "", ""


def _not_none(union: shape.UnionType) -> shape.Type:
    return next(member for member in union.types if not isinstance(member, shape.NoneType))


def _name(wanted: shape.Type, unit: str, expects: str) -> str:
    if isinstance(wanted, shape.BoolType):
        return "true or false"
    if isinstance(wanted, shape.LiteralType):
        return "one of " + ", ".join(str(value) for value in wanted.values)
    if isinstance(wanted, shape.StrType):
        return expects or "text"
    return scalar.UNIT_NAMES[unit]


def _advice(key: str, fields: dict[str, shape.Field]) -> str:
    """How to mend an unknown key: the close one, the one with the unit left off, where it lives, or all there are."""
    by_attribute = {field.name: name for name, field in fields.items()}
    if key in by_attribute:
        return f"did you mean {by_attribute[key]!r}?"
    close = scalar.suggestion(key, fields)
    if close:
        return close
    homes = [child(path, key) for path, names in _HOMES if key in names]
    if homes:
        return f"it belongs at {' or '.join(homes[:3])}"
    return f"known here: {', '.join(fields)}"


def _homes(wanted: shape.Type, path: str) -> list[tuple[str, frozenset[str]]]:
    """Every mapping of the document with the keys it takes."""
    wanted = _unwrap(wanted)[0]
    if isinstance(wanted, shape.UnionType):
        wanted = _unwrap(_not_none(wanted))[0]
    if isinstance(wanted, shape.ListType):
        return _homes(wanted.item_type, path + "[]")
    if not isinstance(wanted, shape.StructType):
        return []
    found = [(path, frozenset(field.encode_name for field in wanted.fields))]
    for field in wanted.fields:
        found += _homes(field.type, child(path, field.encode_name))
    return found


_HOMES: Final = _homes(_CLUSTER, "")
