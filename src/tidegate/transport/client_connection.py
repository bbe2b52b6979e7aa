"""One connection to an upstream: sends a request, reads its answer, and goes back to its pool.

llhttp (httptools) parses. What it finds in one read is noted and handed on after it returned: a body piece per read,
and completion last, so that whoever reacts to it may already use this connection again. One that sent more than its
answer is never used again.

    IDLE --send--> WAITING --answer head--> READING --answer whole--> IDLE (kept) or CLOSED
    any  --cancelled, peer closed, garbage--> CLOSED
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final, Protocol, cast

import httptools

from tidegate.transport.call import Call
from tidegate.wire.http import Headers

IDLE: Final = 0
WAITING: Final = 1
READING: Final = 2
CLOSED: Final = 3

MAX_HEAD_BYTES: Final = 65_536
MAX_HEADERS: Final = 256
JOIN_BYTES: Final = 16_384
"""Head and body up to here go out in one buffer: a plain write is cheaper than a gathering one."""


logger = logging.getLogger("tidegate.transport")


class Home(Protocol):
    """The pool, as far as a connection needs it."""

    def opened(self, connection: ClientConnection) -> None: ...

    def closed(self, connection: ClientConnection) -> None: ...

    def keep(self, connection: ClientConnection) -> None: ...


class ClientConnection(asyncio.Protocol):
    """An upstream connection. One call at a time."""

    __slots__ = (
        "_call", "_head_bytes", "_head_seen", "_headers", "_home", "_keep_alive", "_message_done", "_overrun",
        "_parser", "_paused", "_pieces", "_status", "_transport", "idle_since_s", "stage",
    )  # fmt: skip

    _transport: asyncio.Transport

    def __init__(self, home: Home, call: Call) -> None:
        self._home = home
        self._call: Call | None = call
        self._parser = httptools.HttpResponseParser(self)
        self.stage = IDLE
        self._headers: Headers = []
        self._pieces: list[bytes] = []
        self._head_bytes = 0
        self._head_seen = False
        self._keep_alive = False
        self._message_done = False
        self._overrun = False
        """More came than the answer; whose it is nobody can say."""
        self._status = 0
        self._paused = False
        self.idle_since_s = 0.0

    # --- llhttp: only note ---

    def on_message_begin(self) -> None:
        if self._message_done:
            self._overrun = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._head_seen:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._message_done:
            return
        self._head_seen = True
        self._status = self._parser.get_status_code()
        self._keep_alive = self._parser.should_keep_alive()  # the parser forgets it at the message's end

    def on_body(self, data: bytes) -> None:
        if not self._overrun:
            self._pieces.append(data)

    def on_message_complete(self) -> None:
        if 100 <= self._status < 200:
            self._head_seen = False
            self._headers = []
        else:
            self._message_done = True

    # --- asyncio ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's does not inherit from it
        self._home.opened(self)
        call, self._call = self._call, None
        if call is not None:
            call.carried_by(self)

    def eof_received(self) -> bool:
        if self.stage == READING and not self._framed():
            self._whole()
        elif self.stage == IDLE:
            self.stage = CLOSED
        return False

    def _framed(self) -> bool:
        """Whether the answer says itself where it ends; else the connection's end is its end."""
        return any(name in (b"content-length", b"transfer-encoding") for name, _ in self._headers)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose("reset")
        self._home.closed(self)

    def _lose(self, cause: str) -> None:
        untouched = self.stage == WAITING and self._head_bytes == 0
        self.stage = CLOSED
        call, self._call = self._call, None
        if call is not None:
            call.broken(cause, untouched)

    # --- sending ---

    def send(self, call: Call, data: Sequence[bytes]) -> None:
        """Writes a whole request and awaits its answer."""
        self._call = call
        self.stage = WAITING
        self._headers = []
        self._head_bytes = 0
        self._head_seen = self._message_done = self._overrun = False
        if len(data) == 2 and len(data[1]) <= JOIN_BYTES:
            self._transport.write(data[0] + data[1])
        else:
            self._transport.writelines(data)

    def discard(self) -> None:
        """Closes at once, tells nobody."""
        self._call = None
        self.stage = CLOSED
        self._transport.abort()

    def pause(self) -> None:
        if not self._paused and self.stage != CLOSED:
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._paused and self.stage != CLOSED:
            self._paused = False
            self._transport.resume_reading()

    # --- reading ---

    def data_received(self, data: bytes) -> None:
        if self.stage != READING:
            if self.stage != WAITING:
                self._fail("garbage")
                return
            self._head_bytes += len(data)
        call = self._call
        broken = False
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            broken = True
            self._overrun = self._message_done
        try:
            if self.stage == READING and len(self._pieces) == 1 and not self._message_done and call is not None:
                call.sink.on_answer_body(call, self._pieces.pop())
            else:
                self._hand_on()
        except Exception:
            logger.exception("the receiver of an answer failed")
            broken = True
            if call is not None and call.ended:
                call.sink.on_answer_broken(call, "garbage")
        if broken:
            self._fail("garbage")

    def _hand_on(self) -> None:
        """Tells the call what the last read brought. Any step may end the call, and the next must see it."""
        call = self._call
        if call is None:
            return
        if self.stage == WAITING:
            if not self._head_seen:
                if self._head_bytes > MAX_HEAD_BYTES:
                    self._fail("garbage")
                return
            if len(self._headers) > MAX_HEADERS or self._status < 100:
                self._fail("garbage")
                return
            self.stage = READING
            call.sink.on_answer_head(call, self._status, self._headers)
        if self._pieces:
            pieces, self._pieces = self._pieces, []
            if self._call is call:
                call.sink.on_answer_body(call, pieces[0] if len(pieces) == 1 else b"".join(pieces))
        if self._message_done and self.stage == READING:
            self._whole()

    def _whole(self) -> None:
        """The answer ended. The connection goes back first, so that whoever hears of it can use it."""
        call, self._call = self._call, None
        if self._message_done and self._keep_alive and not self._overrun:
            if self._paused:
                self.resume()
            self.stage = IDLE
            self._home.keep(self)
        else:
            self.stage = CLOSED
            self._transport.abort()
        if call is not None:
            call.end()
            call.sink.on_answer_complete(call)

    def _fail(self, cause: str) -> None:
        self._lose(cause)
        self._transport.abort()
