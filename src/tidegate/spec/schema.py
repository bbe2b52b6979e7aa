"""The JSON schemas of `tidegate.yaml` and `tidegate.lock`, for editors and other tools.

In: the spec types, through `fields.py`. Out: draft 2020-12. It takes quantities as people write them (`800ms`) and
as bare numbers in the base unit. `python -m tidegate.spec.schema` rewrites the shipped file. The loader, not this
schema, has the last word: limits on written quantities and the rules that span fields are only there.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from msgspec import NODEFAULT, Struct
from msgspec import inspect as shape

from tidegate.spec.cluster import ClusterSpec
from tidegate.spec.fields import Key, Section, bare, sections
from tidegate.spec.lock import Lock

SCHEMA_PATH: Final = Path(__file__).with_name("tidegate.schema.json")
LOCK_SCHEMA_PATH: Final = Path(__file__).with_name("tidegate.lock.schema.json")

_AMOUNT: Final = r"[0-9]+(_[0-9]+)*(\.[0-9]+)?"
_SIGNLESS: Final = _AMOUNT + r"([eE][+-]?[0-9]+)?"
_TIME_UNIT: Final = r"(us|µs|ms|sec|s|min|m|h|d)"
WRITTEN: Final = {
    "duration": rf"^({_SIGNLESS} ?{_TIME_UNIT}|0|([0-9]+(\.[0-9]+)? ?{_TIME_UNIT} ?){{2,}})$",
    "bytes": rf"^{_SIGNLESS} ?(([kKmMgGtT][iI]?)?[bB])?$",
    "count": rf"^{_SIGNLESS} ?([kKMG]|[kKmM]i)?$",
    "fraction": rf"^{_SIGNLESS} ?%?$",
    "rate": rf"^{_SIGNLESS} ?([kKMG]|[kKmM]i)?(/ ?(s|sec|m|min|h))?$",
}
"""What may be written for each unit; everything these match, `tidegate.units` reads (unless it is too large)."""


def json_schema(document: type[Struct] = ClusterSpec, name: str = "tidegate.yaml") -> dict[str, Any]:
    """A document's schema as plain values."""
    found = sections(document)
    root = _mapping(found[0])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:tidegate:schema:{name.replace('.', '-')}:1",
        "title": name,
        **root,
        "$defs": {section.name: _mapping(section) for section in found[1:]},
    }


def schema_text() -> str:
    """The text of the shipped schema of `tidegate.yaml`."""
    return _text(json_schema())


def lock_schema_text() -> str:
    """The text of the shipped schema of `tidegate.lock`."""
    return _text(json_schema(Lock, "tidegate.lock"))


def _text(schema: dict[str, Any]) -> str:
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _mapping(section: Section) -> dict[str, Any]:
    required = [key.name for key in section.keys if key.required]
    return {
        "description": section.about,
        "type": "object",
        "additionalProperties": False,
        **({"required": required} if required else {}),
        "properties": {key.name: _property(key) for key in section.keys},
    }


def _property(key: Key) -> dict[str, Any]:
    value = _value(key.type, key.unit)
    if key.nullable:
        value = {"anyOf": [value, {"type": "null"}]}
    described: dict[str, Any] = {"description": key.about, **value}
    if key.default is not NODEFAULT:
        plain = key.default is None or isinstance(key.default, bool) or key.unit in ("", "count")
        described["default"] = key.default if plain else key.default_text
    return described


def _value(wanted: shape.Type, unit: str) -> dict[str, Any]:
    if isinstance(wanted, shape.StructType):
        return {"$ref": f"#/$defs/{wanted.cls.__name__}"}
    if isinstance(wanted, shape.ListType):
        item, item_unit, _, _ = bare(wanted.item_type)
        least = {"minItems": wanted.min_length} if wanted.min_length else {}
        return {"type": "array", "items": _value(item, item_unit), **least}
    if isinstance(wanted, shape.LiteralType):
        return {"enum": list(wanted.values)}
    if isinstance(wanted, shape.BoolType):
        return {"type": "boolean"}
    if isinstance(wanted, shape.StrType):
        return {"type": "string", **({"pattern": wanted.pattern} if wanted.pattern else {})}
    assert isinstance(wanted, shape.IntType | shape.FloatType)
    return _quantity(wanted, unit)


def _quantity(wanted: shape.IntType | shape.FloatType, unit: str) -> dict[str, Any]:
    limits = {
        "exclusiveMinimum": wanted.gt,
        "minimum": wanted.ge,
        "exclusiveMaximum": wanted.lt,
        "maximum": wanted.le,
    }
    number: dict[str, Any] = {"type": "integer" if isinstance(wanted, shape.IntType) else "number"}
    number |= {name: limit for name, limit in limits.items() if limit is not None}
    return {"anyOf": [number, {"type": "string", "pattern": WRITTEN[unit]}]} if unit else number


if __name__ == "__main__":
    SCHEMA_PATH.write_text(schema_text(), encoding="utf-8")
    LOCK_SCHEMA_PATH.write_text(lock_schema_text(), encoding="utf-8")
