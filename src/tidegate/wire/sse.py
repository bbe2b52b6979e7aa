"""Server-sent events as engines send them: cut into whole events, and read without decoding where possible.

An event ends at a blank line; lines end with LF or CRLF (the lone CR that the standard also allows is used by no
engine). Because the end of an event is the earliest position that completes a blank line, the same bytes give the
same events however they were split. Reading looks for JSON keys as byte patterns first: inside a JSON string a
quote is escaped, so `"content":"` cannot occur in text. Chunks written with spaces fall back to decoding.
"""

from __future__ import annotations

from typing import Final

from tidegate.wire.chunks import ChunkError, decode_error, decode_finish_reason, decode_token_kind, decode_usage

MAX_EVENT_BYTES: Final = 4 * 2**20

NO_TOKEN: Final = 0
REASONING: Final = 1
VISIBLE: Final = 2

DONE_EVENT: Final = b"data: [DONE]\n\n"

_VISIBLE_NEEDLES: Final = (b'"content":"', b'"text":"', b'"refusal":"')
_REASONING_NEEDLES: Final = (b'"reasoning_content":"', b'"reasoning":"')
_CALL_NEEDLES: Final = (b'"tool_calls":[{', b'"function_call":{')


class EventTooLargeError(ValueError):
    """An event grew past the bound without ending; the stream is not server-sent events, or is hostile."""


class SseSplitter:
    """Cuts a byte stream into whole events. Events and the rest join to exactly the bytes fed.

    Cost is linear in the bytes fed; at most `max_event_bytes` are held.
    """

    __slots__ = ("_held", "_max_event_bytes", "_scanned")

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._held = bytearray()
        self._scanned = 0
        self._max_event_bytes = max_event_bytes

    @property
    def pending_bytes(self) -> int:
        """Bytes of an event that has not ended."""
        return len(self._held)

    def feed(self, data: bytes) -> list[bytes]:
        """Whole events, each with its closing blank line. Raises `EventTooLargeError`."""
        if not self._held:
            if data.find(b"\n\n") == len(data) - 2 and data.find(b"\r") < 0 and len(data) >= 2:
                if len(data) > self._max_event_bytes:
                    raise EventTooLargeError(f"an event is larger than {self._max_event_bytes} bytes")
                return [data]
            return self._cut(data, 0)
        self._held += data
        whole = bytes(self._held) if self._may_end() else b""
        if whole:
            start = self._scanned
            self._held.clear()
            return self._cut(whole, start)
        self._scanned = max(0, len(self._held) - 2)
        self._check_held()
        return []

    def take_rest(self) -> bytes:
        """Gives up the unfinished event, at the end of a stream."""
        rest = bytes(self._held)
        self._held.clear()
        self._scanned = 0
        return rest

    def _may_end(self) -> bool:
        held = self._held
        return held.find(b"\n\n", self._scanned) >= 0 or held.find(b"\n\r\n", self._scanned) >= 0

    def _cut(self, data: bytes, scan_from: int) -> list[bytes]:
        events: list[bytes] = []
        start = 0
        end = _event_end(data, scan_from)
        while end >= 0:
            if end - start > self._max_event_bytes:
                raise EventTooLargeError(f"an event is larger than {self._max_event_bytes} bytes")
            events.append(data[start:end])
            start = end
            end = _event_end(data, start)
        self._held += data[start:]
        self._scanned = max(0, len(self._held) - 2)
        self._check_held()
        return events

    def _check_held(self) -> None:
        if len(self._held) > self._max_event_bytes:
            raise EventTooLargeError(f"an event is larger than {self._max_event_bytes} bytes")


def _event_end(data: bytes, start: int) -> int:
    """One past the first blank line's end at or after `start`; -1 when there is none."""
    lf = data.find(b"\n\n", start)
    # A CRLF blank line matters only before the LF one, so the search stops there.
    crlf = data.find(b"\n\r\n", start, lf + 1 if lf >= 0 else len(data))
    if crlf >= 0:
        return crlf + 3
    return lf + 2 if lf >= 0 else -1


def data_of(event: bytes) -> bytes:
    """The event's data, `data:` lines joined by LF; empty for comments and events without data."""
    if event.startswith(b"data: ") and event.find(b"\n") >= len(event) - 2 and event.endswith(b"\n\n"):
        return event[6:-2]
    lines: list[bytes] = []
    for line in event.replace(b"\r\n", b"\n").split(b"\n"):
        if line.startswith(b"data:"):
            lines.append(line[6:] if line.startswith(b"data: ") else line[5:])
    return b"\n".join(lines)


def is_done(event: bytes) -> bool:
    """Whether this is the `[DONE]` that ends an OpenAI stream."""
    return len(event) < 64 and data_of(event).strip() == b"[DONE]"


def token_kind(event: bytes) -> int:
    """What an event carries: `NO_TOKEN`, `REASONING` or `VISIBLE` (content, text, refusal or tool call).

    measuring.md: role-only deltas, usage chunks, comments, errors and `[DONE]` carry no token.
    """
    for needle in _VISIBLE_NEEDLES:
        if _has_text(event, needle):
            return VISIBLE
    for needle in _CALL_NEEDLES:
        if event.find(needle) >= 0:
            return VISIBLE
    for needle in _REASONING_NEEDLES:
        if _has_text(event, needle):
            return REASONING
    if event.find(b'": ') < 0 or event.find(b'"choices"') < 0:
        return NO_TOKEN
    return decode_token_kind(data_of(event))


def first_content(event: bytes) -> bool:
    """Whether an event carries a token, so that the first such event is the first token."""
    return token_kind(event) != NO_TOKEN


def finish_reason(event: bytes) -> str | None:
    """The finish reason an event carries, if any."""
    at = event.find(b'"finish_reason":"')
    if at >= 0:
        start = at + 17
        end = event.find(b'"', start)
        return event[start:end].decode("utf-8", "replace") if end >= 0 else None
    if event.find(b'"finish_reason": "') < 0:
        return None
    return decode_finish_reason(data_of(event))


def error_of(event: bytes) -> ChunkError | None:
    """The in-band error an event carries, if any."""
    if event.find(b'"error"') < 0 or event.find(b'"choices"') >= 0:
        return None
    return decode_error(data_of(event))


def is_usage_only(event: bytes) -> bool:
    """Whether an event is the closing usage chunk (no choices), which a client may not have asked for."""
    return (event.find(b'"choices":[]') >= 0 or event.find(b'"choices": []') >= 0) and event.find(b'"usage"') >= 0


def usage_of(tail: bytes) -> tuple[int, int] | None:
    """(prompt tokens, output tokens) from the last `usage` object in some bytes; None where there is none.

    `tail` may be an event, a few events, or the end of a non-streaming body, cut anywhere before `"usage"`.
    """
    at = tail.rfind(b'"usage":')
    while at >= 0:
        found = decode_usage(tail[at + 8 : at + 8 + 4096])
        if found is not None:
            return found
        at = tail.rfind(b'"usage":', 0, at)
    return None


def _has_text(event: bytes, needle: bytes) -> bool:
    """Whether the key is there with a string that is not empty, in any choice of the chunk."""
    at = event.find(needle)
    while at >= 0:
        after = at + len(needle)
        if event[after : after + 1] not in (b'"', b""):
            return True
        at = event.find(needle, after)
    return False
