"""One request on a server connection and the answer to it, as an application sees them.

The application may answer at any moment after `on_head`, in one piece (`respond`) or in chunks (`start`, `send`,
`finish`), from inside a callback or later. An answer is given once; what is written after the client left or
after the end is dropped, because both can happen between two callbacks.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from tidegate.wire.http import CHUNKED, CLOSE, KEEP_ALIVE, LAST_CHUNK, STATUS_LINES, Headers, head_lines, status_line


class Application(Protocol):
    """What a server serves. Called on the event loop; must not block."""

    def on_head(self, exchange: Exchange) -> None:
        """A request head, before any of its body."""
        ...

    def on_body(self, exchange: Exchange, data: bytes) -> None: ...

    def on_request_complete(self, exchange: Exchange) -> None: ...

    def on_gone(self, exchange: Exchange) -> None:
        """The client left before the answer was finished. Nothing more is called for this exchange."""
        ...

    def on_writable(self, exchange: Exchange, writable: bool) -> None:
        """The client reads too slowly (`False`), or has caught up (`True`)."""
        ...


JOIN_BYTES: Final = 16_384
"""Head and body up to here are copied into one buffer: a plain write is cheaper than a gathering one."""


CHUNK_HEADS: Final = tuple(b"%x\r\n" % size for size in range(1024))


class Owner(Protocol):
    """The connection, as far as an exchange needs it."""

    def answered(self, exchange: Exchange) -> None: ...

    def answering_early(self, exchange: Exchange) -> None: ...

    def hold_body(self, held: bool) -> None: ...


class Exchange:
    """A request and its answer. `headers` have lower-case names; `target` is path and query."""

    __slots__ = (
        "_chunked", "_owner", "_transport", "complete", "content_length", "context", "ended", "expects_continue",
        "failed", "headers", "http_minor", "keep_alive", "method", "named", "started", "target", "writable",
    )  # fmt: skip

    def __init__(
        self, owner: Owner, transport: asyncio.Transport, method: str, target: str, headers: Headers, minor: int = 1
    ) -> None:
        self._owner = owner
        self._transport = transport
        self._chunked = True
        self.method = method
        self.target = target
        self.headers = headers
        self.named = dict(headers)
        """The headers by name; of a repeated one, the last."""
        self.http_minor = minor
        self.content_length = 0
        """Of the request body; −1 when it comes in chunks."""
        self.expects_continue = False
        self.context: object = None
        """The application's own."""
        self.complete = False
        """The request was read whole."""
        self.keep_alive = True
        self.started = False
        """An answer head was written."""
        self.ended = False
        """Nothing more can be written: answered, aborted, or the client left."""
        self.failed = False
        """The application raised; it was a defect and not the client that ended this."""
        self.writable = True

    def _connection_line(self) -> bytes:
        if not self.complete:
            self._owner.answering_early(self)
        if not self.keep_alive:
            return CLOSE
        return KEEP_ALIVE if self.http_minor == 0 else b""

    def respond(self, status: int, headers: Headers | bytes, body: bytes) -> None:
        """The whole answer; `content-length` is added. `headers` may be ready-made lines."""
        if self.ended or self.started:
            return
        self.started = True
        sent = b"" if self.method == "HEAD" else body
        lines = (
            STATUS_LINES.get(status) or status_line(status),
            headers if isinstance(headers, bytes) else head_lines(headers),
            b"" if self.complete and self.keep_alive and self.http_minor else self._connection_line(),
            len(body),
        )
        if len(sent) <= JOIN_BYTES:
            self._transport.write(b"%b%b%bcontent-length: %d\r\n\r\n%b" % (*lines, sent))
        else:
            self._transport.writelines((b"%b%b%bcontent-length: %d\r\n\r\n" % lines, sent))
        self.ended = True
        self._owner.answered(self)

    def start(self, status: int, headers: Headers | bytes, content_length: int = -1) -> None:
        """Begins an answer of unknown length: chunked, or ended by close for an HTTP/1.0 client.

        With `content_length` the pieces sent are that body, unframed; `finish` after all of it.
        """
        if self.ended or self.started:
            return
        self.started = True
        framing = CHUNKED
        if content_length >= 0:
            self._chunked = False
            framing = b"content-length: %d\r\n" % content_length
        elif self.http_minor == 0:
            self._chunked = self.keep_alive = False
            framing = b""
        lines = headers if isinstance(headers, bytes) else head_lines(headers)
        self._transport.write(b"%b%b%b%b\r\n" % (status_line(status), lines, self._connection_line(), framing))

    def send(self, data: bytes) -> None:
        """One piece of the answer, framed here. An empty one is none: as a chunk it would end the answer."""
        size = len(data)
        if self.ended or not size:
            return
        if self._chunked:
            self._transport.write((CHUNK_HEADS[size] if size < 1024 else b"%x\r\n" % size) + data + b"\r\n")
        else:
            self._transport.write(data)

    def finish(self) -> None:
        """The answer is whole."""
        if self.ended:
            return
        if self._chunked:
            self._transport.write(LAST_CHUNK)
        self.ended = True
        self._owner.answered(self)

    def abort(self) -> None:
        """Cuts the connection: the only honest end when a started answer cannot be finished."""
        if self.ended:
            return
        self.ended = True
        self._transport.abort()

    def pause_reading(self) -> None:
        """Stops reading the request body; the client's own buffers fill."""
        self._owner.hold_body(True)

    def resume_reading(self) -> None:
        self._owner.hold_body(False)
