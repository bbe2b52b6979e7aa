"""YAML text into nodes that know their line, within bounds.

In: a path or text. Out: the root `yaml.Node`. Errors: `SpecError` with one problem. Nothing is constructed here:
which text means what is decided by the type a field wants (`scalar.py`), so that YAML 1.1's habits (`on` is true,
`1:30` is 90, `010` is 8) never change a value unseen. The events are counted before anything recursive looks at
them, because nesting and aliases can make a small file explode.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Final

import yaml

from tidegate.spec.problem import Problem, SpecError

MAX_FILE_BYTES: Final = 2**20
MAX_DEPTH: Final = 32
MAX_EVENTS: Final = 200_000
EXAMPLE_HINT: Final = "`tidegate init` writes a commented example to start from"

_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_FORBIDDEN: Final = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_OPENING: Final = (yaml.SequenceStartEvent, yaml.MappingStartEvent)
_CLOSING: Final = (yaml.SequenceEndEvent, yaml.MappingEndEvent)


def read_text(path: str | os.PathLike[str]) -> str:
    """The file's text (UTF-8, at most `MAX_FILE_BYTES`)."""
    source = os.fspath(path)
    try:
        with Path(source).open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise _whole_file(source, "there is no such file", EXAMPLE_HINT) from None
    except IsADirectoryError:
        raise _whole_file(source, "this is a directory; name the YAML file in it") from None
    except (OSError, ValueError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc)
        raise _whole_file(source, f"the file cannot be read ({reason})") from None
    if len(data) > MAX_FILE_BYTES:
        raise _whole_file(source, f"the file is larger than {MAX_FILE_BYTES // 2**20} MiB; is it the right one?")
    return _decode(data, source)


def compose(text: str, source: str) -> yaml.Node:
    """The one document in `text` as a node tree with marks."""
    text = text.removeprefix("\ufeff")
    _check_characters(text, source)
    try:
        _check_events(text, source)
        root = _compose(text)
    except yaml.YAMLError as exc:
        raise _syntax_error(exc, text, source) from None
    if root is None:
        raise _whole_file(source, "the file is empty", EXAMPLE_HINT)
    return root


def _compose(text: str) -> yaml.Node | None:
    loader = _LOADER(text)
    try:
        root: yaml.Node | None = loader.get_single_node()
        return root
    finally:
        loader.dispose()


def _decode(data: bytes, source: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        line = data.count(b"\n", 0, exc.start) + 1
        text = f"byte 0x{data[exc.start]:02x} is not UTF-8; save the file as UTF-8"
        raise SpecError([Problem(source=source, line=line, column=1, text=text)]) from None


def _check_characters(text: str, source: str) -> None:
    match = _FORBIDDEN.search(text)
    if match is not None:
        line = text.count("\n", 0, match.start()) + 1
        column = match.start() - text.rfind("\n", 0, match.start())
        sentence = f"the character U+{ord(match.group()):04X} may not stand in YAML; delete it"
        raise SpecError([Problem(source=source, line=line, column=column, text=sentence)])


def _check_events(text: str, source: str) -> None:
    depth = documents = 0
    for count, event in enumerate(yaml.parse(text, Loader=_LOADER)):
        sentence = ""
        if isinstance(event, _OPENING):
            depth += 1
        elif isinstance(event, _CLOSING):
            depth -= 1
        elif isinstance(event, yaml.DocumentStartEvent):
            documents += 1
        tag = getattr(event, "tag", None)
        if tag is not None:
            sentence = f"the tag {tag!r} is not supported; delete it"
        elif depth > MAX_DEPTH:
            sentence = f"nested deeper than {MAX_DEPTH} levels"
        elif documents > 1:
            sentence = "a second document starts here; keep one per file and delete the '---'"
        elif count > MAX_EVENTS:
            sentence = f"more than {MAX_EVENTS:,} values in one file"
        if sentence:
            raise _at(event.start_mark, sentence, source)


def _syntax_error(exc: yaml.YAMLError, text: str, source: str) -> SpecError:
    mark = getattr(exc, "problem_mark", None) or getattr(exc, "context_mark", None)
    problem = getattr(exc, "problem", None) or str(exc)
    if mark is None:
        return _whole_file(source, f"this is not YAML: {problem}")
    lines = text.splitlines()
    line = lines[mark.line] if mark.line < len(lines) else ""
    if "\t" in line[: len(line) - len(line.lstrip())]:
        return _at(mark, "a tab indents this line; YAML allows only spaces there", source)
    context = getattr(exc, "context", None)
    return _at(mark, f"this is not YAML: {problem}" + (f" {context}" if context else ""), source)


def _at(mark: Any, text: str, source: str) -> SpecError:
    return SpecError([Problem(source=source, line=mark.line + 1, column=mark.column + 1, text=text)])


def _whole_file(source: str, text: str, hint: str = "") -> SpecError:
    return SpecError([Problem(source=source, text=text)], hint=hint)
