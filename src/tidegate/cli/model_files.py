"""Reads a model's `config.json` for the commands that need its shape."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from tidegate.engines.fit import ModelShape, read_shape
from tidegate.errors import BadInputError

_MOST_BYTES: Final = 4 * 2**20


def read_model(path: Path) -> ModelShape:
    """The shape in a `config.json`, or in the one of a folder. Raises BadInputError when there is none to read."""
    file = path / "config.json" if path.is_dir() else path
    try:
        with file.open("rb") as opened:
            text = opened.read(_MOST_BYTES + 1)
    except OSError as exc:
        hint = "give a model's folder or its config.json"
        raise BadInputError(f"{file} cannot be read: {exc.strerror}", hint=hint) from None
    return read_shape(parsed(text, file), str(file))


def parsed(text: bytes, file: Path) -> Any:
    """The JSON in `text`. Raises BadInputError with the line where it ends being JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as exc:
        where = f":{exc.lineno}" if isinstance(exc, json.JSONDecodeError) else ""
        raise BadInputError(
            f"{file}{where}: this is not JSON", hint="the file may be half written or cut off"
        ) from None
