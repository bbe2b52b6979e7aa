"""One SSE answer on its way through: whole events go on untouched, and are counted in passing.

Until the first token-carrying event everything is held back, because until then the attempt may be replaced. From
there on each read is one look at its last bytes and one count; only what does not look like the usual `data:` events
is taken apart. How a stream ended, and its usage, are read from its last pieces once it is over.
"""

from __future__ import annotations

from typing import Final

from tidegate.policy.ticket import Usage
from tidegate.wire.sse import (
    EventTooLargeError,
    SseSplitter,
    error_of,
    finish_reason,
    first_content,
    is_done,
    is_usage_only,
    usage_of,
)

MAX_EVENT_BYTES: Final = 2**20
MAX_PRELUDE_BYTES: Final = 65_536
"""Held before a first token; a stream that says more without one is let through."""


def split(block: bytes) -> list[bytes]:
    """Whole events of a block that ends at a boundary."""
    return SseSplitter(MAX_EVENT_BYTES + len(block)).feed(block)


class EventRelay:
    """The state of one stream. `understood`: its chunks are OpenAI's, so that tokens can be told from the rest.

    `hides_usage`: its closing usage chunk was asked for by the gateway alone, and is read but not shown.
    """

    __slots__ = (
        "_before",
        "_earlier",
        "_fast_blocks",
        "_held",
        "_hides_usage",
        "_last",
        "_understood",
        "error_seen",
        "flowing",
        "prelude",
    )

    def __init__(self, understood: bool, hides_usage: bool = False) -> None:
        self._understood = understood
        self._hides_usage = hides_usage
        self._held: list[bytes] = []
        self.prelude = b""
        """Whole events before the first token."""
        self.flowing = False
        """The first token is out."""
        self.error_seen = False
        """The engine itself reported an error in the stream."""
        self._earlier = self._before = self._last = b""
        self._fast_blocks = 0
        """How many of the last pieces were counted without reading them, at least."""

    def whole(self, data: bytes) -> bytes:
        """The whole events that `data` completes; an unfinished one is held. Raises `EventTooLargeError`."""
        if not self._held and data.endswith(b"\n\n"):
            return data
        if b"\n" not in data:
            return self._hold(data)
        self._held.append(data)
        block = b"".join(self._held)
        end = max(block.rfind(b"\n\n") + 2, block.rfind(b"\n\r\n") + 3)
        if end < 3:
            self._held = [block]
            return self._hold(b"")
        self._held = []
        if end == len(block):
            return block
        self._hold(block[end:])
        return block[:end]

    def _hold(self, data: bytes) -> bytes:
        if data:
            self._held.append(data)
        if sum(map(len, self._held)) > MAX_EVENT_BYTES:
            raise EventTooLargeError(f"an event is larger than {MAX_EVENT_BYTES} bytes")
        return b""

    def starts(self, block: bytes) -> int:
        """Before the first token: adds `block` to the prelude; the tokens in it, 0 while there is none."""
        tokens = self._tokens(block)
        self.prelude += self.shown(block)
        self._remember(block)
        if tokens == 0 and len(self.prelude) > MAX_PRELUDE_BYTES:
            return 1
        return tokens

    def _tokens(self, block: bytes) -> int:
        events = split(block)
        if not self._understood:
            return sum(1 for event in events if not event.startswith(b":"))
        return sum(1 for event in events if first_content(event))

    def usual(self, data: bytes) -> int:
        """After the first token, most reads are whole `data:` events: remembers these and returns how many, unread.
        −1 for anything else, which is left to `whole` and `meter`."""
        if self._held or not data.endswith(b"\n\n") or not data.startswith(b"data: {") or b'"error"' in data:
            return -1
        if self._hides_usage and (b'"usage":{' in data or b'"usage": {' in data):
            return -1
        self._earlier = self._before
        self._before = self._last
        self._last = data
        self._fast_blocks += 1
        return data.count(b"\n\ndata: {") + 1

    def shown(self, block: bytes) -> bytes:
        """What the client gets of a block."""
        if not self._hides_usage or b'"usage"' not in block:
            return block
        return b"".join(event for event in split(block) if not is_usage_only(event))

    def meter(self, block: bytes) -> int:
        """After the first token: the token-carrying events in an unusual `block`."""
        if block.startswith(b":") and all(event.startswith(b":") for event in split(block)):
            return 0  # comments say nothing of how the stream ends
        self._earlier = self._before
        self._before = self._last
        self._last = block
        self._fast_blocks = 0
        return self._meter_unusual(block)

    def _meter_unusual(self, block: bytes) -> int:
        if b'"error"' in block and any(error_of(event) is not None for event in split(block)):
            self.error_seen = True
        return self._tokens(block)

    def _remember(self, block: bytes) -> None:
        self._earlier = self._before
        self._before = self._last
        self._last = block
        if b'"error"' in block:
            self._meter_unusual(block)

    # --- at the end ---

    def rest(self) -> bytes:
        """What came after the last boundary."""
        return b"".join(self._held)

    def tail(self) -> bytes:
        """The last pieces that went through, and the rest."""
        return self._earlier + self._before + self._last + self.rest()

    def ended_well(self) -> bool:
        """Whether the stream said that it is over: `[DONE]`, or a finish reason. Others end when HTTP says so."""
        if not self._understood:
            return True
        return any(is_done(event) or finish_reason(event) is not None for event in split(self.tail() + b"\n\n"))

    def said_done(self) -> bool:
        """Whether `[DONE]` came."""
        return any(is_done(event) for event in split(self.tail() + b"\n\n"))

    def usage(self, prompt_tokens: int, counted_tokens: int) -> Usage:
        """Told by the engine where it did, else what was counted, less the closing events that carry no token."""
        told = usage_of(self.tail())
        if told is not None:
            return Usage(told[0], told[1])
        return Usage(prompt_tokens, max(0, counted_tokens - self._closing_events()), known=False)

    def _closing_events(self) -> int:
        """Events at the end that were counted unread and turn out to carry no token."""
        pieces = [self._earlier, self._before, self._last][-self._fast_blocks :] if self._fast_blocks else []
        events = split(b"".join(pieces))
        return sum(1 for event in events if event.startswith(b"data: {") and not first_content(event))
