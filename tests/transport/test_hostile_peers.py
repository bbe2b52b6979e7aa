"""Peers that put bytes where they do not belong: after the last chunk, after the answer, into an unread socket."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.testing.memory_transport import MemoryClient, MemoryNetwork, MemoryWire
from tidegate.transport.client import Call, ConnectionPool
from tidegate.transport.network import SystemNetwork
from tidegate.transport.server import Exchange, HttpServer, Limits
from tidegate.wire.http import Headers, passed_on

HOST = b"host: h\r\n"
CHUNKED = b"POST /a HTTP/1.1\r\n" + HOST + b"transfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n"
GET = b"GET /b HTTP/1.1\r\n" + HOST + b"\r\n"


class Asked:
    """Answers with the target; keeps what it was asked. Targets under /wait are answered by the test."""

    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []
        self.gone: list[str] = []

    def on_head(self, exchange: Exchange) -> None:
        self.exchanges.append(exchange)
        if exchange.target == "/early":
            exchange.respond(403, [], b"no")

    def on_body(self, exchange: Exchange, data: bytes) -> None: ...

    def on_request_complete(self, exchange: Exchange) -> None:
        if exchange.target != "/wait":
            exchange.respond(200, [], exchange.target.encode() * 100)

    def on_gone(self, exchange: Exchange) -> None:
        self.gone.append(exchange.target)

    def on_writable(self, exchange: Exchange, writable: bool) -> None: ...


class Place:
    """A server with one client."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.wire = MemoryWire()
        self.app = Asked()
        self.server = HttpServer(self.app, limits)
        self.client = MemoryClient(self.wire, self.server)

    def say(self, data: bytes) -> bytes:
        """Sends and returns everything received so far."""
        self.client.send(data)
        self.wire.pump()
        return self.client.received

    def wait(self, ticks: int) -> None:
        for _ in range(ticks):
            self.server.wheel.advance()
        self.wire.pump()


@given(cut=st.integers(1, len(CHUNKED) + 20))
def test_trailers_are_no_headers_of_the_request(cut: int) -> None:
    place = Place()
    data = CHUNKED + b"authorization: Bearer other\r\nx-priority: 9\r\n\r\n"
    place.client.send(data[:cut])
    place.say(data[cut:])
    (exchange,) = place.app.exchanges
    assert [name for name, _ in exchange.headers] == [b"host", b"transfer-encoding"]
    assert place.client.received.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "successor",
    [
        pytest.param(GET, id="a request"),
        pytest.param(b"GE", id="the first bytes of one"),
        pytest.param(
            b"GET /b HTTP/1.1\r\n" + HOST + b"connection: upgrade\r\nupgrade: websocket\r\n\r\n", id="upgrade"
        ),
        pytest.param(b"CONNECT b:1 HTTP/1.1\r\n" + HOST + b"\r\n", id="a tunnel"),
        pytest.param(b"\x00\xff", id="garbage"),
    ],
)
def test_what_follows_a_chunked_body_in_its_read_touches_nothing(successor: bytes) -> None:
    place = Place()
    received = place.say(CHUNKED + b"\r\n" + successor)
    (exchange,) = place.app.exchanges
    assert [name for name, _ in exchange.headers] == [b"host", b"transfer-encoding"]
    assert received.startswith(b"HTTP/1.1 200 ")
    assert b"connection: close" in received
    assert received.count(b"HTTP/1.1 ") == 1
    assert place.client.closed
    assert place.server.statistics.defects == 0


def test_a_client_that_asks_and_never_reads_piles_nothing_up() -> None:
    place = Place(Limits(idle_s=5.0))
    place.client.transport.reads_slowly = True
    for _ in range(50):
        place.say(GET * 1000)
    assert len(place.app.exchanges) < 2000
    assert not place.client.transport.reading
    place.wait(10)
    assert place.client.closed


def test_a_client_that_asked_ahead_and_reads_at_last_gets_every_answer() -> None:
    place = Place()
    place.client.transport.reads_slowly = True
    for _ in range(5):
        place.say(GET * 1000)
    for _ in range(30):
        place.client.transport.catch_up()
        place.wire.pump()
    place.client.transport.reads_slowly = False
    place.client.transport.catch_up()
    place.wire.pump()
    assert place.client.received.count(b"HTTP/1.1 200 ") == 5000
    assert place.say(GET).count(b"HTTP/1.1 200 ") == 5001


def test_a_client_that_does_not_read_the_answer_before_is_given_up_while_it_waits_for_the_next() -> None:
    place = Place(Limits(idle_s=5.0))
    place.client.transport.reads_slowly = True
    place.say(b"POST /wait HTTP/1.1\r\n" + HOST + b"content-length: 2\r\n\r\n1")
    place.app.exchanges[0].start(200, [])
    place.app.exchanges[0].send(b"x" * 100_000)
    place.say(b"2")
    place.wait(20)
    assert place.app.gone == ["/wait"]


def test_an_unwanted_body_that_stalls_gets_no_second_answer() -> None:
    place = Place(Limits(idle_s=5.0))
    place.say(b"POST /early HTTP/1.1\r\n" + HOST + b"content-length: 5\r\n\r\n12")
    place.wait(20)
    assert place.client.received.count(b"HTTP/1.1 ") == 1
    assert place.client.closed


def test_an_empty_piece_does_not_end_a_chunked_answer() -> None:
    place = Place()
    place.say(b"GET /wait HTTP/1.1\r\n" + HOST + b"\r\n")
    exchange = place.app.exchanges[0]
    exchange.start(200, [])
    exchange.send(b"")
    exchange.send(b"on")
    exchange.send(b"")
    exchange.finish()
    place.wire.pump()
    assert place.client.received.endswith(b"\r\n\r\n2\r\non\r\n0\r\n\r\n")


@pytest.mark.parametrize(
    ("target", "path"),
    [
        (b"http://h/p?q", "/p?q"),
        (b"HTTPS://h:80", "/"),
        (b"http://h?a=/v1/models", "/?a=/v1/models"),
        (b"http://user@h/x", "/x"),
    ],
)
def test_an_absolute_target_is_what_follows_the_authority(target: bytes, path: str) -> None:
    place = Place()
    place.say(b"GET " + target + b" HTTP/1.1\r\n" + HOST + b"\r\n")
    assert [exchange.target for exchange in place.app.exchanges] == [path]


@pytest.mark.parametrize("target", [b"/v1/chat/completions#x", b"http://h/p#x"])
def test_a_fragment_is_refused_because_the_next_server_would_drop_it(target: bytes) -> None:
    place = Place()
    assert place.say(b"GET " + target + b" HTTP/1.1\r\n" + HOST + b"\r\n").startswith(b"HTTP/1.1 400 ")
    assert place.app.exchanges == []


class Heard:
    """Everything a sink was told, in order."""

    def __init__(self) -> None:
        self.events: list[object] = []
        self.body = b""

    def on_answer_head(self, call: Call, status: int, headers: Headers) -> None:
        self.events.append(status)

    def on_answer_body(self, call: Call, data: bytes) -> None:
        self.body += data

    def on_answer_complete(self, call: Call) -> None:
        self.events.append("complete")

    def on_answer_broken(self, call: Call, cause: str) -> None:
        self.events.append(cause)


ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nyes"
CHUNKED_ANSWER = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nyes\r\n0\r\n\r\n"


@pytest.mark.parametrize("answer", [ANSWER, CHUNKED_ANSWER], ids=["length", "chunked"])
@pytest.mark.parametrize(
    "more",
    [
        pytest.param(b"and more", id="a longer body"),
        pytest.param(b"HTTP/1.1 503 No\r\ncontent-length: 4\r\n\r\nevil", id="a second answer"),
        pytest.param(b"HTTP/1.1 408 Request Time-out\r\n", id="half an answer"),
        pytest.param(b"H", id="one byte"),
    ],
)
def test_what_an_engine_sends_after_its_answer_reaches_nobody(answer: bytes, more: bytes) -> None:
    wire, asked = MemoryWire(), []  # type: ignore[var-annotated]
    network = MemoryNetwork(wire)
    network.listen("e", 1, asked.append)
    pool = ConnectionPool("e", 1, now=lambda: 0.0, network=network)
    first, second = Heard(), Heard()
    for heard in (first, second):
        pool.call(b"POST /x HTTP/1.1\r\nhost: e\r\ncontent-length: 2\r\n\r\n", b"hi", heard)
        wire.pump()
        asked[-1].raw(answer + more if heard is first else answer)
        wire.pump()
    assert (first.events, first.body) == ([200, "complete"], b"yes")
    assert (second.events, second.body) == ([200, "complete"], b"yes")
    assert pool.dialled == 2


def test_a_name_that_no_host_can_have_is_refused_like_one_that_nobody_answers_to() -> None:
    async def dial() -> str:
        failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        SystemNetwork().connect("ä" * 80, 1, asyncio.Protocol, 5.0, failed.set_result)
        return await asyncio.wait_for(failed, 5.0)

    assert asyncio.run(dial()) == "refused"


def test_every_connection_header_is_heeded() -> None:
    headers = [(b"connection", b"close, a"), (b"a", b"1"), (b"connection", b"B"), (b"b", b"2"), (b"c", b"3")]
    assert passed_on(headers, frozenset((b"connection",))) == [(b"c", b"3")]


@pytest.mark.parametrize("framing", [b"content-length: 900", b"transfer-encoding: chunked"])
def test_bodies_that_arrive_at_once_are_bounded_together(framing: bytes) -> None:
    place = Place(Limits(body_bytes=1000, arriving_bytes=2000))
    clients = [place.client, *(MemoryClient(place.wire, place.server) for _ in range(4))]
    piece = b"1f4\r\n" + b"x" * 500 + b"\r\n" if framing.startswith(b"t") else b"x" * 500
    for client in clients:
        client.send(b"POST /wait HTTP/1.1\r\n" + HOST + framing + b"\r\n\r\n" + piece)
        place.wire.pump()
    *early, late = clients
    assert late.received.startswith(b"HTTP/1.1 429 ")
    assert b"retry-after: 1\r\n" in late.received
    assert [client.received for client in early] == [b""] * 4
    for client in early:
        client.leave()
    place.wire.pump()
    assert place.server.statistics.arriving_bytes == 0
    another = MemoryClient(place.wire, place.server)
    another.send(b"POST /b HTTP/1.1\r\n" + HOST + b"content-length: 900\r\n\r\n" + b"x" * 500)
    another.send(b"x" * 400)
    place.wire.pump()
    assert another.received.startswith(b"HTTP/1.1 200 ")
    assert place.server.statistics.arriving_bytes == 0


def test_a_status_that_is_none_is_garbage_and_not_waited_on() -> None:
    wire, asked = MemoryWire(), []  # type: ignore[var-annotated]
    network = MemoryNetwork(wire)
    network.listen("e", 1, asked.append)
    heard = Heard()
    ConnectionPool("e", 1, now=lambda: 0.0, network=network).call(
        b"POST /x HTTP/1.1\r\nhost: e\r\ncontent-length: 2\r\n\r\n", b"hi", heard
    )
    wire.pump()
    asked[0].raw(b"HTTP/1.1 000 X\r\ncontent-length: 2\r\n\r\n{}")
    wire.pump()
    assert heard.events == ["garbage"]
