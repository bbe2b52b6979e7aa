"""One client connection: requests in, one after the other, answers out in the same order.

llhttp (httptools) parses, a fresh parser for each request, and only what this file hands to it: a head is collected
and bounded first, then fed as a whole. A body of known length is cut here, exactly where it ends, so that a pipelined
successor waits, unparsed, until the answer before it is finished. A chunked body goes through the parser, which alone
knows where the successor begins: if one was in the same read, the connection is closed after the answer, which HTTP
allows and clients retry. Trailers are read and dropped. An offered upgrade is ignored (RFC 9110 §7.8). No request is
begun while the client leaves answers unread, so that pipelining cannot pile them up here.

Stages and what moves between them:

    HEAD    --head complete-->          BODY      --body complete-->  ANSWER
    ANSWER  --answer finished-->        HEAD      (or closed, when not kept alive)
    BODY    --answered early, little body left--> DISCARD  --body complete--> HEAD
    HEAD, BODY --refused, or answered early with much body left--> LINGER --client closes, or time-out--> closed

LINGER reads and forgets, because closing a socket with unread bytes resets it and the answer may never arrive.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol, cast

import httptools

from tidegate.transport.exchange import Application, Exchange
from tidegate.transport.limits import Limits, Statistics
from tidegate.transport.refusals import HeadProblem, inspect_head, refuse
from tidegate.transport.wheel import TimerWheel
from tidegate.wire.http import CONTINUE, Headers

HEAD: Final = 0
BODY: Final = 1
ANSWER: Final = 2
DISCARD: Final = 3
LINGER: Final = 4
CLOSED: Final = 5

HELD_BYTES: Final = 65_536
"""Pipelined bytes kept before reading pauses; a paused socket would hide that the client left."""
DISCARD_BYTES: Final = 262_144
"""Of an unwanted body: read and forgotten for the sake of keep-alive up to here, closed beyond."""
LINGER_TICKS: Final = 3
FRAMING_SLACK_BYTES: Final = 16_384
"""Chunk framing and trailers may exceed eight times the body by this much."""

logger = logging.getLogger("tidegate.transport")


class Home(Protocol):
    """The server, as far as a connection needs it."""

    application: Application
    limits: Limits
    statistics: Statistics
    wheel: TimerWheel
    closing: bool

    def opened(self, connection: ServerConnection) -> bool: ...

    def closed(self, connection: ServerConnection) -> None: ...


class ServerConnection(asyncio.Protocol):
    """A client's connection. Its public methods are those of asyncio's protocols and of an exchange's owner."""

    __slots__ = (
        "_application", "_arriving_bytes", "_awaited_bytes", "_body_bytes", "_consuming", "_deadline_tick", "_exchange",
        "_headers", "_held", "_home", "_message_done", "_overrun", "_parser", "_partial", "_paused", "_pieces",
        "_stage", "_target", "_transport", "_wire_bytes", "_writable", "wheel_slot",
    )  # fmt: skip

    _transport: asyncio.Transport

    def __init__(self, home: Home) -> None:
        self._home = home
        self._application = home.application
        self._parser: httptools.HttpRequestParser | None = None
        """Of a chunked body under way."""
        self._stage = HEAD
        self._exchange: Exchange | None = None
        self._partial = b""
        self._held = b""
        self._target = b""
        self._headers: Headers = []
        self._pieces: list[bytes] = []
        self._awaited_bytes = 0
        """Body bytes still to come; −1 while a chunked body is under way."""
        self._body_bytes = 0
        self._arriving_bytes = 0
        """This connection's part of what the server's unfinished bodies hold."""
        self._wire_bytes = 0
        self._message_done = False
        self._overrun = False
        self._consuming = False
        self._paused = False
        self._writable = True
        self._deadline_tick = 0
        self.wheel_slot = -1

    # --- llhttp: only note what was found; acting waits until the parser has returned ---

    def on_message_begin(self) -> None:
        if self._message_done:
            self._overrun = True

    def on_url(self, url: bytes) -> None:
        self._target = url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_body(self, data: bytes) -> None:
        if not self._overrun:
            self._pieces.append(data)

    def on_message_complete(self) -> None:
        self._message_done = True

    # --- asyncio: the connection's life ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's does not inherit from it
        self._await_request()
        self._home.wheel.add(self, self._home.limits.idle_ticks)
        if not self._home.opened(self):
            refuse(self._transport, 503, "Too many connections.", "too_many_connections")
            self._linger()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stage = CLOSED
        self._home.wheel.drop(self)
        self._home.closed(self)
        self._partial = self._held = b""
        self._parser = None
        self._leave()

    def eof_received(self) -> bool:
        """A client that half-closes is taken as gone: it cannot be told from one that was killed."""
        self._leave()
        return False

    def _leave(self) -> None:
        exchange, self._exchange = self._exchange, None
        self._arrived()
        if exchange is None or exchange.ended:
            return
        exchange.ended = True
        try:
            self._application.on_gone(exchange)
        except Exception:  # noqa: BLE001 - logged there, with the traceback
            self._defect(exchange)

    def pause_writing(self) -> None:
        self._set_writable(False)

    def resume_writing(self) -> None:
        self._set_writable(True)

    def _set_writable(self, writable: bool) -> None:
        self._writable = writable
        if not writable or self._stage != ANSWER:
            self._deadline_tick = self._home.wheel.tick + self._home.limits.idle_ticks
        else:
            self._deadline_tick = 0
        exchange = self._exchange
        if exchange is None:
            if writable:
                self._take_held()
            return
        exchange.writable = writable
        try:
            self._application.on_writable(exchange, writable)
        except Exception:  # noqa: BLE001 - logged there, with the traceback
            self._give_up(exchange)

    def on_tick(self, tick: int) -> int:
        """The wheel asks: is it time to give up on this client?"""
        if self._deadline_tick > tick:
            return self._deadline_tick - tick
        if self._deadline_tick == 0:
            return self._home.limits.idle_ticks
        if self._stage == BODY or (self._stage == HEAD and self._partial):
            self._fail(408, "The request did not arrive in time.", "request_timeout")
            return 0
        self._transport.abort()
        return 0

    # --- reading ---

    def data_received(self, data: bytes) -> None:
        if self._consuming or self._stage == ANSWER or (self._stage == HEAD and not self._writable):
            self._hold(data)
            return
        self._consuming = True
        try:
            self._consume(data)
        except Exception:  # noqa: BLE001 - logged there, with the traceback
            self._give_up(self._exchange)
        finally:
            self._consuming = False

    def _consume(self, rest: bytes) -> None:
        while True:
            if self._stage == HEAD and self._writable:
                rest = self._take_head(rest)
            elif self._stage == BODY or self._stage == DISCARD:
                rest = self._take_body(rest)
            elif self._stage == ANSWER or self._stage == HEAD:
                self._held = rest + self._held
                return
            else:
                return
            if not rest:
                if not self._held or self._stage == ANSWER or not self._writable:
                    return
                rest, self._held = self._held, b""
                self._read_on()

    def _hold(self, data: bytes) -> None:
        self._held += data
        if len(self._held) > HELD_BYTES and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def _read_on(self) -> None:
        if self._paused:
            self._paused = False
            self._transport.resume_reading()

    def _take_held(self) -> None:
        """Goes on with what was held back, once there is nothing to wait for."""
        if self._held and self._stage == HEAD and self._writable and not self._consuming:
            held, self._held = self._held, b""
            self._read_on()
            self.data_received(held)

    def hold_body(self, held: bool) -> None:
        """An exchange's wish to stop or go on reading its body."""
        if not held:
            self._read_on()
        elif not self._paused and self._stage == BODY:
            self._paused = True
            self._transport.pause_reading()

    def _take_head(self, data: bytes) -> bytes:
        """Collects a whole head, has it parsed, and opens the exchange. Returns what follows it."""
        scan_from = 0
        if self._partial:
            scan_from = max(0, len(self._partial) - 3)
            data = self._partial + data
            self._partial = b""
        if data.startswith(b"\r\n"):
            data = data.lstrip(b"\r\n")
            scan_from = 0
        end = data.find(b"\r\n\r\n", scan_from) + 4
        if end < 4 and len(data) <= self._home.limits.head_bytes:
            if not scan_from:  # the head must be whole in time from its first byte
                self._deadline_tick = self._home.wheel.tick + self._home.limits.idle_ticks
            self._partial = data
            return b""
        if end < 4 or end > self._home.limits.head_bytes:
            self._fail(431, "The request head is too large.", "head_too_large")
            return b""
        if end == len(data):
            self._open_exchange(data)
            return b""
        self._open_exchange(data[:end])
        return data[end:]

    def _open_exchange(self, head: bytes) -> None:
        try:
            exchange = self._parse(head)
        except HeadProblem as problem:
            self._fail(problem.status, problem.message, problem.code)
            return
        exchange.writable = self._writable
        self._awaited_bytes = exchange.content_length
        self._body_bytes = 0
        self._home.statistics.requests += 1
        self._exchange = exchange
        self._stage = BODY
        exchange.complete = exchange.content_length == 0
        self._application.on_head(exchange)
        if not self._under_way(exchange):
            return
        if exchange.complete:
            self._request_done(exchange)
        elif exchange.expects_continue and not exchange.started:
            exchange.expects_continue = False
            self._transport.write(CONTINUE)

    def _under_way(self, exchange: Exchange) -> bool:
        """Whether it is still this connection's; any call of the application may have ended it."""
        return self._exchange is exchange

    def _parse(self, head: bytes) -> Exchange:
        """A head's exchange. Raises `HeadProblem`."""
        self._headers = []
        self._message_done = False
        parser = httptools.HttpRequestParser(self)
        try:
            parser.feed_data(head)
        except httptools.HttpParserUpgrade:
            pass
        except httptools.HttpParserInvalidMethodError:
            raise HeadProblem(501, "The request method is not known.", "unknown_method") from None
        except httptools.HttpParserError as exc:
            raise HeadProblem(400, f"Malformed request head: {exc}.", "malformed_request") from None
        method = "POST" if head.startswith(b"POST ") else parser.get_method().decode("ascii")
        if method == "CONNECT":
            raise HeadProblem(501, "This server is not a tunnel.", "unknown_method")
        exchange = Exchange(self, self._transport, method, self._target.decode("ascii"), self._headers)
        inspect_head(exchange, head, self._home.limits.body_bytes)
        if self._home.closing:
            exchange.keep_alive = False
        if exchange.content_length < 0:
            self._headers = []  # what follows are trailers: nothing of the exchange's
            self._parser = self._chunk_parser(parser, head)
        return exchange

    def _chunk_parser(self, parser: httptools.HttpRequestParser, head: bytes) -> httptools.HttpRequestParser:
        """The parser that goes on into a chunked body; after an offered upgrade, one that was never offered it."""
        self._wire_bytes = 0
        if not self._message_done:
            return parser
        lines = head.split(b"\r\n")
        parser = httptools.HttpRequestParser(self)
        self._message_done = False
        parser.feed_data(b"\r\n".join(line for line in lines if not line.lower().startswith(b"upgrade:")))
        return parser

    def _take_body(self, data: bytes) -> bytes:
        """Takes what belongs to the body; returns what follows it."""
        if self._awaited_bytes < 0:
            self._take_chunks(data)
            return b""
        rest = b""
        if len(data) > self._awaited_bytes:
            data, rest = data[: self._awaited_bytes], data[self._awaited_bytes :]
        self._awaited_bytes -= len(data)
        exchange = self._exchange
        if exchange is None:
            if self._awaited_bytes == 0:
                self._await_request()
            return rest
        exchange.complete = self._awaited_bytes == 0
        if not exchange.complete and not self._arrives(len(data)):
            return b""
        self._application.on_body(exchange, data)
        if exchange.complete and self._exchange is exchange:
            self._request_done(exchange)
        return rest

    def _take_chunks(self, data: bytes) -> None:
        assert self._parser is not None
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as exc:
            if not self._overrun:
                self._fail(400, f"Malformed request body: {exc}.", "malformed_request")
                return
        body = b"".join(self._pieces)
        self._pieces = []
        self._wire_bytes += len(data)
        self._body_bytes += len(body)
        exchange = self._exchange
        if self._body_bytes > self._home.limits.body_bytes:
            self._fail(413, "The request body is too large.", "body_too_large")
        elif self._wire_bytes > 8 * self._body_bytes + FRAMING_SLACK_BYTES:
            self._fail(400, "The request body is mostly framing.", "malformed_request")
        elif exchange is not None:
            exchange.complete = self._message_done
            if not exchange.complete and not self._arrives(len(body)):
                return
            if body:
                self._application.on_body(exchange, body)
            if exchange.complete and self._exchange is exchange:
                self._request_done(exchange)

    def _arrives(self, size: int) -> bool:
        """Counts a piece of an unfinished body. False when all of them together are too much: this one is refused."""
        statistics = self._home.statistics
        self._arriving_bytes += size
        statistics.arriving_bytes += size
        if statistics.arriving_bytes <= self._home.limits.arriving_bytes:
            return True
        self._fail(429, "Too many request bodies are arriving at once; try again.", "overloaded")
        return False

    def _arrived(self) -> None:
        """The body is whole or no longer wanted."""
        self._home.statistics.arriving_bytes -= self._arriving_bytes
        self._arriving_bytes = 0

    def _request_done(self, exchange: Exchange) -> None:
        self._stage = ANSWER
        self._arrived()
        if self._writable:  # else the time for reading the answer before it runs on
            self._deadline_tick = 0
        self._parser = None
        if self._overrun:
            exchange.keep_alive = False
        self._application.on_request_complete(exchange)

    # --- answering ---

    def answering_early(self, exchange: Exchange) -> None:
        """An answer begins before the request is whole: a long or unknown rest is not waited for."""
        if exchange.expects_continue or not 0 <= self._awaited_bytes <= DISCARD_BYTES:
            exchange.keep_alive = False

    def answered(self, exchange: Exchange) -> None:
        """The exchange's answer is written. What comes next depends on how much of the request is still unread."""
        self._exchange = None
        self._arrived()
        if self._stage == ANSWER or (self._stage == BODY and exchange.complete):
            if exchange.keep_alive and not self._home.closing:
                self._stage = HEAD
                self._deadline_tick = self._home.wheel.tick + self._home.limits.idle_ticks
                self._take_held()
            else:
                self._stage = CLOSED
                self._transport.close()
        elif self._stage == BODY:
            if exchange.keep_alive:
                self._stage = DISCARD
                self._read_on()
            else:
                self._linger()

    def _await_request(self) -> None:
        self._stage = HEAD
        self._deadline_tick = self._home.wheel.tick + self._home.limits.idle_ticks

    def _fail(self, status: int, message: str, code: str) -> None:
        """Refuses what cannot be a request, or drops the exchange whose body went wrong."""
        self._home.statistics.malformed += 1
        exchange = self._exchange
        self._leave()
        if exchange is not None and exchange.started:
            self._transport.abort()
            return
        refuse(self._transport, status, message, code)
        self._linger()

    def _linger(self) -> None:
        self._stage = LINGER
        self._held = self._partial = b""
        self._parser = None
        self._deadline_tick = self._home.wheel.tick + LINGER_TICKS
        self._home.wheel.drop(self)
        self._home.wheel.add(self, LINGER_TICKS)
        self._read_on()
        if self._transport.can_write_eof():
            self._transport.write_eof()

    def _give_up(self, exchange: Exchange | None) -> None:
        """Ends an exchange whose application failed, and lets it release what it holds. Called while handling that."""
        if exchange is None:
            logger.exception("the application failed after its answer")
            self._home.statistics.defects += 1
            return
        exchange.failed = True
        self._defect(exchange)
        self._leave()
        if exchange.started:
            self._transport.abort()
        else:
            exchange.started = exchange.ended = True
            refuse(self._transport, 500, "Tidegate failed on this request; its log says why.", "internal_error")
            self._linger()

    def _defect(self, exchange: Exchange) -> None:
        self._home.statistics.defects += 1
        logger.exception("the application failed on %s %s", exchange.method, exchange.target)

    def close_when_idle(self) -> None:
        """For a server that stops: closes now, or after the answer to the request under way."""
        if self._exchange is not None:
            self._exchange.keep_alive = False
        elif self._stage == HEAD and not self._partial:
            self._stage = CLOSED
            self._transport.close()

    def abort(self) -> None:
        self._transport.abort()
