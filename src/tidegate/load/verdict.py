"""Which `Outcome` an answer is: from the HTTP status, the error's code, the in-band error or the way it broke.

Codes that Tidegate's gateway gives are outcome names; those of engines and other gateways fall back to what their
status means. Refusals and failures are never mixed up with answers that merely came late.
"""

from __future__ import annotations

from typing import Final

from tidegate.errors import Outcome
from tidegate.wire.chunks import ChunkError, decode_error

_DRIVER_ONLY: Final = (
    Outcome.COMPLETED,
    Outcome.CLIENT_CANCELLED,
    Outcome.CLIENT_TIMEOUT,
    Outcome.TRUNCATED,
)
_BY_CODE: Final[dict[str, Outcome]] = {
    **{outcome.value: outcome for outcome in Outcome if outcome not in _DRIVER_ONLY},
    "model_not_found": Outcome.UNKNOWN_MODEL,
    "invalid_api_key": Outcome.UNAUTHORIZED,
    "invalid_json": Outcome.BAD_REQUEST,
    "missing_field": Outcome.BAD_REQUEST,
    "invalid_type": Outcome.BAD_REQUEST,
    "duplicate_field": Outcome.BAD_REQUEST,
}
_BY_STATUS: Final[dict[int, Outcome]] = {
    401: Outcome.UNAUTHORIZED,
    403: Outcome.UNAUTHORIZED,
    404: Outcome.UNKNOWN_MODEL,
    413: Outcome.BODY_TOO_LARGE,
    429: Outcome.OVERLOADED,
    502: Outcome.ENGINE_UNREACHABLE,
    503: Outcome.NO_INSTANCE,
    504: Outcome.ENGINE_TIMEOUT,
}

Verdict = tuple[Outcome, str]
"""The outcome and its machine-readable reason, empty for a completed answer."""


def of_status(status: int, body: bytes) -> Verdict:
    """An answer that is not 200."""
    error = decode_error(body)
    code = "" if error is None else error.code or error.type
    known = _BY_CODE.get(code)
    if known is not None:
        return known, code
    fallback = Outcome.ENGINE_REFUSED if 400 <= status < 500 else Outcome.ENGINE_ERROR
    return _BY_STATUS.get(status, fallback), code or f"http_{status}"


def of_stream_error(error: ChunkError, tokens_seen: bool) -> Verdict:
    """An error event inside a stream that had answered 200."""
    code = error.code or error.type
    known = _BY_CODE.get(code)
    if known is not None:
        return known, code
    return (Outcome.STREAM_BROKEN if tokens_seen else Outcome.ENGINE_ERROR), code or "error_event"


def of_break(cause: str, head_seen: bool) -> Verdict:
    """A connection that failed: `refused`, `reset`, `garbage` or `timeout` (of the connect)."""
    if cause == "garbage":
        return Outcome.ENGINE_ERROR, "garbage"
    if head_seen:
        return Outcome.TRUNCATED, cause
    return Outcome.ENGINE_UNREACHABLE, "connect_timeout" if cause == "timeout" else cause
