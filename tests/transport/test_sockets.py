"""The same over real sockets, for what only sockets have."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest
import uvloop

from tidegate.errors import ExitCode, UnavailableError
from tidegate.transport.client import Call, ConnectionPool
from tidegate.transport.server import Exchange, HttpServer
from tidegate.wire.http import Headers


class Pouring:
    """Answers every request with `pieces` pieces of 64 KiB, as fast as the client takes them."""

    def __init__(self, pieces: int) -> None:
        self.pieces = pieces
        self.sent = 0
        self.paused = 0
        self.gone = asyncio.Event()

    def on_head(self, exchange: Exchange) -> None: ...

    def on_body(self, exchange: Exchange, data: bytes) -> None: ...

    def on_request_complete(self, exchange: Exchange) -> None:
        exchange.start(200, [])
        self._pour(exchange)

    def _pour(self, exchange: Exchange) -> None:
        while self.sent < self.pieces and exchange.writable:
            exchange.send(b"x" * 65_536)
            self.sent += 1
        if self.sent == self.pieces:
            exchange.finish()

    def on_gone(self, exchange: Exchange) -> None:
        self.gone.set()

    def on_writable(self, exchange: Exchange, writable: bool) -> None:
        if writable:
            self._pour(exchange)
        else:
            self.paused += 1


class Collecting:
    """A sink that waits for the end."""

    def __init__(self) -> None:
        self.size = 0
        self.cause = ""
        self.ended = asyncio.Event()

    def on_answer_head(self, call: Call, status: int, headers: Headers) -> None: ...

    def on_answer_body(self, call: Call, data: bytes) -> None:
        self.size += len(data)

    def on_answer_complete(self, call: Call) -> None:
        self.ended.set()

    def on_answer_broken(self, call: Call, cause: str) -> None:
        self.cause = cause
        self.ended.set()


GET = b"GET / HTTP/1.1\r\nhost: h\r\n\r\n"


async def served(app: Pouring) -> tuple[HttpServer, int]:
    server = HttpServer(app)
    return server, await server.start("127.0.0.1", 0)


def test_a_slow_reader_holds_the_writer_back_and_gets_everything() -> None:
    async def scenario() -> None:
        app = Pouring(400)
        server, port = await served(app)
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=65_536)
        writer.write(GET)
        while not app.paused:
            await asyncio.sleep(0.01)
        before = app.sent
        assert before < 400
        received = 0
        while b"0\r\n\r\n" not in (data := await reader.read(65_536)):
            received += len(data)
        assert received + len(data) > 400 * 65_536
        writer.close()
        await server.close()
        assert server.statistics.open == 0

    uvloop.run(asyncio.wait_for(scenario(), 60))


def test_a_client_that_vanishes_is_noticed_while_nothing_is_written() -> None:
    async def scenario() -> None:
        class Silent(Pouring):
            def on_request_complete(self, exchange: Exchange) -> None: ...

        app = Silent(0)
        server, port = await served(app)
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET)
        await asyncio.sleep(0.05)
        writer.transport.abort()
        await asyncio.wait_for(app.gone.wait(), 5)
        await server.close()

    uvloop.run(scenario())


def test_small_writes_leave_at_once_on_both_sides() -> None:
    """Both loops must set TCP_NODELAY; without it every other chunk waits 40 ms."""

    async def scenario() -> None:
        options: list[int] = []

        class Looking(Pouring):
            def on_request_complete(self, exchange: Exchange) -> None:
                sock = exchange._transport.get_extra_info("socket")
                options.append(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
                super().on_request_complete(exchange)

        server, port = await served(Looking(1))
        pool = ConnectionPool("127.0.0.1", port, now=time.monotonic)
        sink = Collecting()
        call = pool.call(GET, b"", sink)
        await asyncio.wait_for(sink.ended.wait(), 5)
        assert call.ended
        (connection,) = pool._idle
        options.append(
            connection._transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        )
        pool.close()
        await server.close()
        assert all(options)
        assert len(options) == 2

    uvloop.run(scenario())
    asyncio.run(scenario())


def test_a_taken_port_is_said_in_one_sentence() -> None:
    async def scenario() -> None:
        server, port = await served(Pouring(0))
        with pytest.raises(UnavailableError, match=f"cannot listen on 127.0.0.1:{port}") as caught:
            await HttpServer(Pouring(0)).start("127.0.0.1", port)
        assert caught.value.exit_code is ExitCode.UNAVAILABLE
        await server.close()

    uvloop.run(scenario())


def test_calls_to_a_closed_port_and_to_a_silent_host_are_told_apart() -> None:
    async def scenario() -> None:
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            port = listening.getsockname()[1]
            sink = Collecting()
            ConnectionPool("127.0.0.1", port, now=time.monotonic).call(GET, b"", sink)
            await asyncio.wait_for(sink.ended.wait(), 5)
            assert sink.cause == "refused"
            listening.listen(0)
            fillers = [socket.socket() for _ in range(8)]  # the backlog is full: further connects hang
            for filler in fillers:
                filler.setblocking(False)
                filler.connect_ex(("127.0.0.1", port))
            sink = Collecting()
            ConnectionPool("127.0.0.1", port, now=time.monotonic, connect_timeout_s=0.3).call(GET, b"", sink)
            await asyncio.wait_for(sink.ended.wait(), 5)
            assert sink.cause == "timeout"
            for filler in fillers:
                filler.close()

    uvloop.run(scenario())


def test_hundreds_of_clients_leave_nothing_behind() -> None:
    async def scenario() -> None:
        server, port = await served(Pouring(0))
        pool = ConnectionPool("127.0.0.1", port, now=time.monotonic)
        sinks = [Collecting() for _ in range(300)]
        calls = [pool.call(GET, b"", sink) for sink in sinks]
        for call in calls[::3]:
            call.cancel()
        await asyncio.wait_for(asyncio.gather(*(s.ended.wait() for i, s in enumerate(sinks) if i % 3)), 20)
        assert pool.calls_open == 0
        pool.close()
        assert await server.drain(5)
        assert server.statistics.open == 0
        await server.close()
        assert len(asyncio.all_tasks()) == 1

    uvloop.run(scenario())
