"""`tidegate.lock` as text: written with every value on its own line, read with the line of whatever is wrong.

In: a `Lock`, or YAML text. Out: text, or the same `Lock`. Quantities are written as people write them (`800ms`). The
seal at the end holds a short digest of each value in the file's order; when an edit by hand broke it, the alignment of
the two lists says which line is new, changed or gone. Only what the file itself says is sealed and hashed, so that a
lock outlives a Tidegate that adds keys with defaults. The seal is no protection against someone who means harm: that
is what the signature is for.
"""

from __future__ import annotations

import hashlib
import os
import re
from difflib import SequenceMatcher
from typing import Any, Final

import msgspec
import yaml
from msgspec import inspect as shape

from tidegate.spec import document
from tidegate.spec.fields import bare
from tidegate.spec.load import parse_as
from tidegate.spec.lock import FORMAT, Lock, canonical, hash_of_plain, plain
from tidegate.spec.problem import Problem, SpecError, child, item
from tidegate.spec.rules import broken_rules
from tidegate.spec.scalar import UNIT_WRITERS

SEALS_A_LINE: Final = 8
HEAD: Final = (
    "# tidegate.lock, written by `tidegate freeze`. It says what runs and why.\n"
    "# Edits by hand break the seal: change tidegate.yaml and freeze again.\n"
)
UNSEALED: Final = ("seal", "signature")
_PLAIN: Final = re.compile(r"[A-Za-z][A-Za-z0-9_./+-]*")
_YAML_WORDS: Final = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})
_ESCAPES: Final = {'"': '\\"', "\\": "\\\\"}

Places = dict[str, tuple[int, int]]


def lock_text(lock: Lock) -> str:
    """The file, sealed."""
    sealed = msgspec.structs.replace(lock, seal=_folded(seal_of(lock)))
    lines: list[str] = []
    _mapping(sealed, shape.type_info(Lock), "", lines)
    return HEAD + "\n".join(lines) + "\n"


def load_lock(path: str | os.PathLike[str]) -> Lock:
    """Reads the lock at `path`. Raises `SpecError` (exit code 3) for what is no lock or was edited by hand."""
    lock, edits = inspect_lock(document.read_text(path), os.fspath(path))
    if edits:
        raise SpecError(edits, hint="change tidegate.yaml and run `tidegate freeze` again, or restore the file")
    return lock


def parse_lock(text: str, source: str = "tidegate.lock") -> Lock:
    """As `load_lock`, from text."""
    lock, edits = inspect_lock(text, source)
    if edits:
        raise SpecError(edits)
    return lock


def inspect_lock(text: str, source: str) -> tuple[Lock, list[Problem]]:
    """The lock and every edit made by hand. Raises `SpecError` where it cannot be read at all."""
    _check_format(document.compose(text, source), source)
    lock, places = parse_as(text, source, Lock)
    broken = list(broken_rules(lock.cluster))
    if broken:
        raise SpecError([_problem(child("cluster", path), places, source, sentence) for path, sentence in broken])
    return lock, _edits(lock, places, source)


def seal_of(lock: Lock) -> list[str]:
    """A digest of each value, in the file's order."""
    return [_short(path, value) for path, value in _leaves(plain(lock))]


def leaves(value: Any, path: str = "") -> list[tuple[str, Any]]:
    """(path, value) of everything that is no mapping and no list with entries, in order."""
    if isinstance(value, dict) and value:
        return [found for key, each in value.items() for found in leaves(each, child(path, key))]
    if isinstance(value, list) and value:
        return [found for index, each in enumerate(value) for found in leaves(each, item(path, index))]
    return [(path, value)]


def _leaves(values: dict[str, Any]) -> list[tuple[str, Any]]:
    return leaves({key: value for key, value in values.items() if key not in UNSEALED})


def _written(value: Any, places: Places, path: str = "") -> Any:
    """What of a plain value stands in the file."""
    if isinstance(value, dict):
        inner = {key: child(path, key) for key in value}
        return {key: _written(value[key], places, at) for key, at in inner.items() if at in places}
    if isinstance(value, list):
        return [_written(each, places, item(path, index)) for index, each in enumerate(value)]
    return value


def _short(path: str, value: Any) -> str:
    return hashlib.sha256(path.encode() + b"=" + canonical(value)).hexdigest()[:8]


def _folded(seals: list[str]) -> list[str]:
    return [" ".join(seals[at : at + SEALS_A_LINE]) for at in range(0, len(seals), SEALS_A_LINE)]


# --- what was edited ------------------------------------------------------------------------------------------


def _check_format(root: yaml.Node, source: str) -> None:
    """A newer format must be named as such before its unknown keys are."""
    if not isinstance(root, yaml.MappingNode):
        return
    keys = {key.value: value for key, value in root.value if isinstance(key, yaml.ScalarNode)}
    version = keys.get("version")
    if isinstance(version, yaml.ScalarNode) and version.value.isdigit() and int(version.value) > FORMAT:
        text = f"this lock has format {version.value}, and this Tidegate reads up to {FORMAT}; upgrade Tidegate"
        raise SpecError([Problem(source=source, line=version.start_mark.line + 1, text=text)])
    if "pools" in keys and "cluster" not in keys:
        hint = "`tidegate freeze -c FILE` makes a lock of it"
        raise SpecError([Problem(source=source, text="this is a cluster document, not a lock")], hint=hint)


def _edits(lock: Lock, places: Places, source: str) -> list[Problem]:
    values = _written(plain(lock), places)
    now = _leaves(values)
    sealed = " ".join(lock.seal).split()
    if not sealed:
        return [Problem(source=source, text="the lock has no seal; it was not written by `tidegate freeze`")]
    found: list[Problem] = []
    digests = [_short(path, value) for path, value in now]
    for tag, old, old_end, new, new_end in SequenceMatcher(None, sealed, digests, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        for path, value in now[new:new_end]:
            word = "changed" if tag == "replace" else "added"
            found.append(_problem(path, places, source, f"{word} by hand since it was sealed; it now says {value!r}"))
        gone = (old_end - old) - (new_end - new)
        if gone > 0:
            path = now[min(new_end, len(now) - 1)][0]
            text = "a value that stood" if gone == 1 else f"{gone} values that stood"
            found.append(_problem(path, places, source, f"{text} before this line was taken out by hand"))
    if not found and lock.hash != hash_of_plain(values["cluster"], values["engines"]):
        found.append(_problem("hash", places, source, "the hash is not that of this configuration"))
    return found


def _problem(path: str, places: Places, source: str, text: str) -> Problem:
    nearest = path
    while nearest and nearest not in places:
        nearest = nearest[: max(nearest.rfind("."), nearest.rfind("["), 0)]
    line, column = places.get(nearest, (0, 0))
    return Problem(source=source, line=line, column=column, path=path, text=text)


# --- writing --------------------------------------------------------------------------------------------------


def _mapping(value: Any, wanted: shape.Type, indent: str, lines: list[str]) -> None:
    assert isinstance(wanted, shape.StructType)
    for field in wanted.fields:
        _entry(f"{indent}{field.encode_name}:", getattr(value, field.name), field.type, indent + "  ", lines)


def _entry(head: str, value: Any, wanted: shape.Type, indent: str, lines: list[str]) -> None:
    """`head` and the value after it, or below it."""
    kind, unit, _, _ = bare(wanted)
    if isinstance(kind, shape.StructType) and value is not None:
        lines.append(head)
        _mapping(value, kind, indent, lines)
    elif isinstance(kind, shape.ListType) and value:
        lines.append(head)
        for each in value:
            _item(each, kind.item_type, indent, lines)
    else:
        lines.append(f"{head} {_scalar(value, kind, unit)}")


def _item(value: Any, wanted: shape.Type, indent: str, lines: list[str]) -> None:
    kind, unit, _, _ = bare(wanted)
    if isinstance(kind, shape.StructType):
        first = len(lines)
        _mapping(value, kind, indent + "  ", lines)
        lines[first] = f"{indent}- {lines[first].lstrip()}"
    else:
        lines.append(f"{indent}- {_scalar(value, kind, unit)}")


def _scalar(value: Any, kind: shape.Type, unit: str) -> str:
    if value is None:
        return "null"
    if isinstance(value, list):
        return "[]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(kind, shape.IntType | shape.FloatType):
        return UNIT_WRITERS[unit](value)
    return str(value) if isinstance(value, int) else _text(value)


def _text(value: str) -> str:
    if _PLAIN.fullmatch(value) and value.lower() not in _YAML_WORDS:
        return value
    return '"' + "".join(_escaped(character) for character in value) + '"'


def _escaped(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
