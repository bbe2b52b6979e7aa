"""Engine versions: `0.33.0`, `v0.33`, `0.5.10.post1`, and `vllm==0.33.0` as a command line names them."""

from __future__ import annotations

import re
from typing import Final

from tidegate.errors import BadInputError

_VERSION: Final = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?(?:\.?(?:post|rc|dev|a|b)\d*)*(?:[+-].*)?")
_ENGINE: Final = re.compile(r"(vllm|sglang)(?:(?:==|=|@| )(\S+))?", re.IGNORECASE)

Version = tuple[int, int, int]
"""Release numbers; suffixes such as `.post1` or `+cu130` change no option."""


def parse_version(text: str) -> Version:
    """`v0.33` → (0, 33, 0). Raises BadInputError for anything that is not a version."""
    match = _VERSION.fullmatch(text.strip())
    if match is None:
        raise BadInputError(f"{text!r} is not an engine version", hint="write for example 0.33.0")
    return int(match.group(1)), int(match.group(2)), int(match.group(3) or 0)


def parse_engine(text: str) -> tuple[str, str | None]:
    """`vllm==0.33.0` → ("vllm", "0.33.0"); `sglang` → ("sglang", None). Raises BadInputError."""
    match = _ENGINE.fullmatch(text.strip())
    if match is None:
        raise BadInputError(f"{text!r} names no engine", hint="write vllm, sglang, vllm==0.33.0 or sglang==0.5.23")
    if match.group(2) is not None:
        parse_version(match.group(2))
    return match.group(1).lower(), match.group(2)
