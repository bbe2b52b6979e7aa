"""Stream chunks decoded whole, for the cases where byte patterns do not settle it (kept apart: not compiled)."""

from __future__ import annotations

import json
from typing import Annotated, Any, Final

import msgspec
from msgspec import Struct

_SCANNER: Final = json.JSONDecoder()


class ChunkError(Struct, frozen=True):
    """An error an engine reported inside a stream."""

    message: str = ""
    type: str = ""
    code: str = ""


class _Delta(Struct):
    content: Any = None
    refusal: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    tool_calls: Any = None
    function_call: Any = None


class _Choice(Struct):
    delta: _Delta | None = None
    text: Any = None
    finish_reason: str | None = None


class _Chunk(Struct):
    choices: list[_Choice] | None = None


class _Usage(Struct, gc=False):
    prompt_tokens: Annotated[int, msgspec.Meta(ge=0)]
    completion_tokens: Annotated[int, msgspec.Meta(ge=0)] = 0


_USAGE: Final = msgspec.json.Decoder(_Usage)
_CHUNK: Final = msgspec.json.Decoder(_Chunk)


def decode_token_kind(data: bytes) -> int:
    """0 nothing, 1 reasoning, 2 visible. Data that is not a chunk carries nothing."""
    kind = 0
    for choice in _choices(data):
        delta = choice.delta or _Delta()
        if choice.text or delta.content or delta.refusal or delta.tool_calls or delta.function_call:
            return 2
        if delta.reasoning_content or delta.reasoning:
            kind = 1
    return kind


def decode_finish_reason(data: bytes) -> str | None:
    """The first choice's finish reason that is set."""
    for choice in _choices(data):
        if choice.finish_reason:
            return choice.finish_reason
    return None


def decode_error(data: bytes) -> ChunkError | None:
    """`{"error": {...}}` (vLLM, SGLang, llama.cpp, OpenAI) or `{"error": "text"}`."""
    try:
        found = msgspec.json.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    error = found.get("error") if isinstance(found, dict) else None
    if isinstance(error, str):
        return ChunkError(message=error)
    if not isinstance(error, dict):
        return None
    return ChunkError(_text(error.get("message")), _text(error.get("type")), _text(error.get("code")))


def decode_usage(text: bytes) -> tuple[int, int] | None:
    """Token counts from bytes that begin with a usage object and may go on after it."""
    try:
        quick = _USAGE.decode(text[: text.rfind(b"}}") + 1])  # the object is the last thing but one closing brace
    except (msgspec.DecodeError, ValueError):
        pass
    else:
        return quick.prompt_tokens, quick.completion_tokens
    try:
        found, _ = _SCANNER.raw_decode(text.decode("utf-8", "replace").lstrip())
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    prompt, output = _count(found.get("prompt_tokens")), _count(found.get("completion_tokens", 0))
    return None if prompt is None or output is None else (prompt, output)


def _choices(data: bytes) -> list[_Choice]:
    try:
        return _CHUNK.decode(data).choices or []
    except (msgspec.DecodeError, ValueError, RecursionError):
        return []


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
