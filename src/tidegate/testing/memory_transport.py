"""Connections without sockets: transports, clients and engines in memory, moved on only by `MemoryWire.pump`.

Nothing is ever delivered from inside a write, as with a real event loop, and what is due is delivered in the order in
which it came to be. So a gateway on a `ManualClock` can be driven step by step, and the same steps always give the
same decisions.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

import httptools

from tidegate.transport.server import HttpServer

MAX_DELIVERIES: Final = 1_000_000
HIGH_WATER_BYTES: Final = 65_536


class MemoryWire:
    """What is under way between ends."""

    def __init__(self) -> None:
        self._due: deque[Callable[[], None]] = deque()

    def later(self, delivery: Callable[[], None]) -> None:
        self._due.append(delivery)

    def pump(self) -> int:
        """Delivers until nothing is under way; returns how many deliveries that took."""
        count = 0
        while self._due:
            self._due.popleft()()
            count += 1
            if count > MAX_DELIVERIES:
                raise RuntimeError("the wire does not come to rest")
        return count


class MemoryTransport(asyncio.Transport):
    """One end of a connection. The other end is whoever set `on_write` and `on_close`."""

    def __init__(self, wire: MemoryWire, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._wire = wire
        self._protocol = protocol
        self._inbound: list[bytes] = []
        self._reading = True
        self._unread_bytes = 0
        self.on_write: Callable[[bytes], None] = lambda data: None
        self.on_close: Callable[[], None] = lambda: None
        self.closing = False
        self.reads_slowly = False
        """The other end takes nothing: what is written piles up, and the protocol is told to pause."""
        self.eof_written = False
        protocol.connection_made(self)

    # --- this end: asyncio.Transport ---

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.closing:
            return
        if self.reads_slowly:
            self._unread_bytes += len(data)
            if self._unread_bytes - len(data) <= HIGH_WATER_BYTES < self._unread_bytes:
                self._wire.later(self._protocol.pause_writing)
        self._wire.later(lambda: self.on_write(bytes(data)))

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if not self.closing:
            self.closing = True
            self._wire.later(lambda: self._protocol.connection_lost(None))
            self._wire.later(self.on_close)

    def is_closing(self) -> bool:
        return self.closing

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.eof_written = True

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        held, self._inbound = self._inbound, []
        for data in held:
            self.deliver(data)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    # --- the other end ---

    @property
    def reading(self) -> bool:
        """Whether this end wants more."""
        return self._reading

    @property
    def unread_bytes(self) -> int:
        """Written while the other end read slowly."""
        return self._unread_bytes

    def deliver(self, data: bytes) -> None:
        """Bytes arrive here."""
        self._wire.later(lambda: self._arrive(data))

    def _arrive(self, data: bytes) -> None:
        if self.closing:
            return
        if self._reading:
            self._protocol.data_received(data)
        else:
            self._inbound.append(data)

    def catch_up(self) -> None:
        """The other end has read everything."""
        self.reads_slowly = False
        if self._unread_bytes > HIGH_WATER_BYTES:
            self._wire.later(self._protocol.resume_writing)
        self._unread_bytes = 0

    def break_off(self) -> None:
        """The other end closes."""
        self._wire.later(self._lose)

    def _lose(self) -> None:
        if self.closing:
            return
        self._protocol.eof_received()
        if not self.closing:
            self.closing = True
            self._protocol.connection_lost(None)


class MemoryClient:
    """A client's connection to a server."""

    def __init__(self, wire: MemoryWire, server: HttpServer) -> None:
        self.transport = MemoryTransport(wire, server.protocol())
        self.transport.on_write = self._got
        self.received = b""

    def _got(self, data: bytes) -> None:
        self.received += data

    @property
    def closed(self) -> bool:
        """Whether the server has closed."""
        return self.transport.closing

    def send(self, data: bytes) -> None:
        self.transport.deliver(data)

    def leave(self) -> None:
        self.transport.break_off()


class EngineRequest:
    """A request as an engine in memory sees it, and the means to answer it piece by piece."""

    def __init__(self, peer: _Peer, method: str, target: str, headers: dict[bytes, bytes], body: bytes) -> None:
        self._peer = peer
        self.method = method
        self.target = target
        self.headers = headers
        self.body = body

    @property
    def cancelled(self) -> bool:
        """Whether the gateway has closed the connection."""
        return self._peer.transport.closing

    def wanted(self) -> bool:
        """Whether the gateway is reading."""
        return self._peer.transport.reading

    def answer(self, body: bytes, status: int = 200, headers: bytes = b"content-type: application/json\r\n") -> None:
        self.raw(b"HTTP/1.1 %d X\r\n%bcontent-length: %d\r\n\r\n%b" % (status, headers, len(body), body))

    def start_stream(self) -> None:
        self.raw(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")

    def piece(self, data: bytes) -> None:
        """A chunk of a stream."""
        self.raw(b"%x\r\n%b\r\n" % (len(data), data))

    def finish(self) -> None:
        self.raw(b"0\r\n\r\n")

    def raw(self, data: bytes) -> None:
        self._peer.transport.deliver(data)

    def cut(self) -> None:
        """The engine closes in the middle."""
        self._peer.transport.break_off()


class _Peer:
    """The engine's side of one connection."""

    def __init__(self, transport: MemoryTransport, on_request: Callable[[EngineRequest], None]) -> None:
        self.transport = transport
        self._on_request = on_request
        self._parser = httptools.HttpRequestParser(self)
        self._target = b""
        self._headers: dict[bytes, bytes] = {}
        self._body = b""
        transport.on_write = self._parser.feed_data

    def on_url(self, url: bytes) -> None:
        self._target = url
        self._headers = {}
        self._body = b""

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        method = self._parser.get_method().decode()
        self._on_request(EngineRequest(self, method, self._target.decode(), self._headers, self._body))


class MemoryNetwork:
    """`transport.network.Network` in memory. An address nobody listens on refuses."""

    def __init__(self, wire: MemoryWire) -> None:
        self._wire = wire
        self._listening: dict[tuple[str, int], Callable[[EngineRequest], None]] = {}
        self.dialled = 0

    def listen(self, host: str, port: int, on_request: Callable[[EngineRequest], None]) -> None:
        self._listening[host, port] = on_request

    def stop_listening(self, host: str, port: int) -> None:
        """Further connections are refused; open ones stay."""
        del self._listening[host, port]

    def connect(
        self,
        host: str,
        port: int,
        protocol: Callable[[], asyncio.Protocol],
        timeout_s: float,
        on_failed: Callable[[str], None],
    ) -> MemoryDial:
        self.dialled += 1
        dial = MemoryDial()

        def establish() -> None:
            on_request = self._listening.get((host, port))
            if dial.cancelled:
                return
            if on_request is None:
                on_failed("refused")
            else:
                _Peer(MemoryTransport(self._wire, protocol()), on_request)

        self._wire.later(establish)
        return dial


class MemoryDial:
    """A connection attempt that may be given up."""

    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True
