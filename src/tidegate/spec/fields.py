"""The spec types as a person reads them: every mapping, its keys, their units, limits, defaults and docstrings.

In: the msgspec types. Out: `Section` and `Key` values for the JSON schema and the reference page, so that both say
what the loader does. The descriptions are the docstrings in the source, which is why the source is read.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from typing import Any, Final

from msgspec import NODEFAULT, Struct
from msgspec import inspect as shape

from tidegate.spec.cluster import ClusterSpec
from tidegate.spec.problem import child
from tidegate.spec.scalar import UNIT_WRITERS

_QUANTITY_WORDS: Final = {
    "duration": "duration",
    "bytes": "size",
    "count": "count",
    "fraction": "fraction",
    "rate": "rate",
    "": "number",
}


class Key(Struct, frozen=True, kw_only=True):
    """One key of a mapping. `type` is bare (no marks); `nullable` says that nothing may stand there."""

    name: str
    type: shape.Type
    unit: str
    expects: str
    nullable: bool
    required: bool
    default: Any
    """`NODEFAULT` where there is none or where it is a mapping or list of its own."""
    about: str

    @property
    def default_text(self) -> str:
        """The default as a person would write it; empty where there is none."""
        if self.default is NODEFAULT:
            return "none" if isinstance(self.type, shape.ListType) and not self.required else ""
        if self.default is None or self.default == "":
            return "none"
        if isinstance(self.default, bool):
            return str(self.default).lower()
        if isinstance(self.default, int | float):
            return UNIT_WRITERS[self.unit](self.default)
        return str(self.default)

    @property
    def kind_text(self) -> str:
        """What to write there, with its limits."""
        return _kind(self.type, self.unit, self.expects)


class Section(Struct, frozen=True, kw_only=True):
    """One mapping of the document, by the path where it stands (`pools[].engine`)."""

    path: str
    name: str
    about: str
    keys: tuple[Key, ...]


def sections(root: type[Struct] = ClusterSpec) -> list[Section]:
    """Every mapping of a document (a `tidegate.yaml` unless told otherwise), the document itself first."""
    found: list[Section] = []
    _collect(shape.type_info(root), "", found)
    return found


def entry_type(wanted: shape.Type) -> shape.Type:
    """What stands in a list (or the type itself), without marks or `None`."""
    wanted = bare(wanted)[0]
    return entry_type(wanted.item_type) if isinstance(wanted, shape.ListType) else wanted


def bare(wanted: shape.Type) -> tuple[shape.Type, str, str, bool]:
    """A type without marks and without `None`: (type, unit, expects, nullable)."""
    if isinstance(wanted, shape.Metadata):
        extra = wanted.extra or {}
        return wanted.type, extra.get("unit", ""), extra.get("expects", ""), False
    if isinstance(wanted, shape.UnionType):
        member = next(one for one in wanted.types if not isinstance(one, shape.NoneType))
        return (*bare(member)[:3], True)
    return wanted, "", "", False


def _collect(wanted: shape.Type, path: str, found: list[Section]) -> None:
    if not isinstance(wanted, shape.StructType):
        return
    docs = _attribute_docs(wanted.cls)
    keys = tuple(_key(field, docs.get(field.name, "")) for field in wanted.fields)
    about = inspect.cleandoc(wanted.cls.__doc__ or "")
    found.append(Section(path=path, name=wanted.cls.__name__, about=about, keys=keys))
    for key in keys:
        below = child(path, key.name) + ("[]" if isinstance(key.type, shape.ListType) else "")
        _collect(entry_type(key.type), below, found)


def _key(field: shape.Field, about: str) -> Key:
    wanted, unit, expects, nullable = bare(field.type)
    composite = isinstance(wanted, shape.StructType | shape.ListType) and field.default is not None
    return Key(
        name=field.encode_name,
        type=wanted,
        unit=unit,
        expects=expects,
        nullable=nullable,
        required=field.required,
        default=NODEFAULT if composite else field.default,
        about=about,
    )


def _attribute_docs(cls: type) -> dict[str, str]:
    """The string under each annotated attribute of `cls`, on one line."""
    body = ast.parse(inspect.getsource(cls)).body[0]
    assert isinstance(body, ast.ClassDef)
    docs: dict[str, str] = {}
    for before, after in zip(body.body, body.body[1:]):
        if not isinstance(before, ast.AnnAssign) or not isinstance(before.target, ast.Name):
            continue
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            docs[before.target.id] = re.sub(r"\s+", " ", str(after.value.value)).strip()
    return docs


def _kind(wanted: shape.Type, unit: str, expects: str) -> str:
    if isinstance(wanted, shape.ListType):
        item, item_unit, item_expects, _ = bare(wanted.item_type)
        listed = "mappings" if isinstance(item, shape.StructType) else _kind(item, item_unit, item_expects)
        return f"list of {listed}"
    if isinstance(wanted, shape.StructType):
        return "mapping"
    if isinstance(wanted, shape.BoolType):
        return "true or false"
    if isinstance(wanted, shape.LiteralType):
        return " or ".join(str(value) for value in wanted.values)
    if isinstance(wanted, shape.IntType | shape.FloatType):
        return ", ".join([_QUANTITY_WORDS[unit], *_limits(wanted, unit)])
    return expects or "text"


def _limits(wanted: shape.IntType | shape.FloatType, unit: str) -> list[str]:
    write: Callable[[Any], str] = "{:,}".format if unit == "count" else UNIT_WRITERS[unit]
    if wanted.ge is not None and wanted.le is not None:
        return [f"{write(wanted.ge)} to {write(wanted.le)}"]
    words = (("more than", wanted.gt), ("at least", wanted.ge), ("less than", wanted.lt), ("at most", wanted.le))
    return [f"{word} {write(limit)}" for word, limit in words if limit is not None]
