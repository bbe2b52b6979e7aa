"""The HTTP/1.1 server: what it accepts, what it refuses, and in which order it answers."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.testing.memory_transport import MemoryClient, MemoryWire
from tidegate.transport.server import Exchange, HttpServer, Limits


class Echo:
    """Answers with the method, target and body; streams under /stream; fails under /defect."""

    def __init__(self) -> None:
        self.gone: list[str] = []
        self.bodies: dict[int, bytes] = {}
        self.open: list[Exchange] = []

    def on_head(self, exchange: Exchange) -> None:
        exchange.context = b""
        if exchange.target == "/early":
            exchange.respond(403, [], b"no")

    def on_body(self, exchange: Exchange, data: bytes) -> None:
        assert isinstance(exchange.context, bytes)
        exchange.context += data

    def on_request_complete(self, exchange: Exchange) -> None:
        if exchange.target == "/wait":
            self.open.append(exchange)
        elif exchange.target == "/defect":
            raise ZeroDivisionError
        elif exchange.target == "/stream":
            exchange.start(200, [(b"content-type", b"text/plain")])
            exchange.send(b"one")
            exchange.send(b"two")
            exchange.finish()
        else:
            assert isinstance(exchange.context, bytes)
            exchange.respond(
                200, [], b"%b %b %b" % (exchange.method.encode(), exchange.target.encode(), exchange.context)
            )

    def on_gone(self, exchange: Exchange) -> None:
        self.gone.append(exchange.target)

    def on_writable(self, exchange: Exchange, writable: bool) -> None: ...


class Place:
    """A server with one client."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.wire = MemoryWire()
        self.app = Echo()
        self.server = HttpServer(self.app, limits)
        self.client = MemoryClient(self.wire, self.server)

    def say(self, data: bytes) -> bytes:
        """Sends and returns everything received so far."""
        self.client.send(data)
        self.wire.pump()
        return self.client.received


HOST = b"host: h\r\n"
TWO = b"POST /a HTTP/1.1\r\n" + HOST + b"content-length: 3\r\n\r\nabc"
THREE = b"POST /b HTTP/1.1\r\n" + HOST + b"transfer-encoding: chunked\r\n\r\n2;x=y\r\nhi\r\n0\r\ntrailer: 1\r\n\r\n"
GET = b"GET /c?d HTTP/1.1\r\n" + HOST + b"\r\n"


@given(cuts=st.lists(st.integers(1, 50), max_size=30))
def test_requests_in_a_row_are_answered_the_same_however_they_are_split(cuts: list[int]) -> None:
    place = Place()
    data = TWO + GET + b"GET /stream HTTP/1.1\r\n" + HOST + b"\r\n" + b"\r\n" + TWO
    for cut in cuts:
        if data[:cut]:
            place.client.send(data[:cut])
        data = data[cut:]
    place.say(data) if data else place.wire.pump()
    assert place.client.received == (
        b"HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\nPOST /a abc"
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nGET /c?d "
        b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ntransfer-encoding: chunked\r\n\r\n"
        b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"
        b"HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\nPOST /a abc"
    )


@given(cut=st.integers(1, len(THREE) - 1))
def test_a_chunked_body_is_put_together(cut: int) -> None:
    place = Place()
    place.client.send(THREE[:cut])
    assert place.say(THREE[cut:]).endswith(b"POST /b hi")
    assert place.say(GET).endswith(b"GET /c?d ")


def test_a_successor_in_the_read_of_a_chunked_body_is_left_to_a_new_connection() -> None:
    place = Place()
    received = place.say(THREE + GET)
    assert b"connection: close" in received
    assert received.endswith(b"POST /b hi")
    assert place.client.closed


def test_a_successor_waits_until_the_answer_before_it_is_finished() -> None:
    place = Place()
    assert place.say(b"GET /wait HTTP/1.1\r\n" + HOST + b"\r\n" + GET) == b""
    place.app.open[0].respond(200, [], b"first")
    place.wire.pump()
    assert place.client.received.index(b"first") < place.client.received.index(b"GET /c?d")


def test_pipelined_bytes_are_bounded() -> None:
    place = Place()
    place.say(b"GET /wait HTTP/1.1\r\n" + HOST + b"\r\n")
    for _ in range(100):
        place.say(GET * 100)
    assert not place.client.transport.reading
    place.app.open[0].respond(200, [], b"")
    place.wire.pump()
    assert place.client.received.count(b"GET /c?d") == 100 * 100
    assert place.client.transport.reading


POST_HEAD = b"POST / HTTP/1.1\r\n" + HOST


@pytest.mark.parametrize(
    ("data", "status"),
    [
        pytest.param(
            POST_HEAD + b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400, id="both lengths"
        ),
        pytest.param(
            POST_HEAD + b"transfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n0\r\n\r\n", 400, id="both, reversed"
        ),
        pytest.param(POST_HEAD + b"content-length: 3\r\ncontent-length: 3\r\n\r\nabc", 400, id="length twice"),
        pytest.param(POST_HEAD + b"content-length: 3, 3\r\n\r\nabc", 400, id="length list"),
        pytest.param(POST_HEAD + b"content-length: +3\r\n\r\nabc", 400, id="signed length"),
        pytest.param(POST_HEAD + b"content-length: -1\r\n\r\n", 400, id="negative length"),
        pytest.param(POST_HEAD + b"content-length: 0x3\r\n\r\nabc", 400, id="hex length"),
        pytest.param(POST_HEAD + b"content-length:\r\n\r\n", 400, id="empty length"),
        pytest.param(POST_HEAD + b"content-length : 3\r\n\r\nabc", 400, id="space before colon"),
        pytest.param(POST_HEAD + b"content-length: 99999999999999999999\r\n\r\n", 400, id="length overflow"),
        pytest.param(POST_HEAD + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n", 400, id="other coding"),
        pytest.param(POST_HEAD + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501, id="coding list"),
        pytest.param(POST_HEAD + b"transfer-encoding: chunked, gzip\r\n\r\n0\r\n\r\n", 400, id="chunked not last"),
        pytest.param(
            POST_HEAD + b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n", 400, id="coding twice"
        ),
        pytest.param(POST_HEAD + b"transfer-encoding: \x0bchunked\r\n\r\n0\r\n\r\n", 400, id="vertical tab"),
        pytest.param(
            POST_HEAD + b"transfer-encoding: chunked\r\n\r\n3 \r\nabc\r\n0\r\n\r\n", 400, id="space in chunk size"
        ),
        pytest.param(POST_HEAD + b"transfer-encoding: chunked\r\n\r\n-3\r\nabc\r\n0\r\n\r\n", 400, id="negative chunk"),
        pytest.param(
            POST_HEAD + b"transfer-encoding: chunked\r\n\r\n0x3\r\nabc\r\n0\r\n\r\n", 400, id="hex chunk prefix"
        ),
        pytest.param(POST_HEAD + b"transfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\n", 400, id="chunk overflow"),
        pytest.param(POST_HEAD + b"transfer-encoding: chunked\r\n\r\n3\nabc\n0\n\n", 400, id="bare LF chunks"),
        pytest.param(POST_HEAD + b"transfer-encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n", 400, id="chunk too long"),
        pytest.param(b"POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400, id="chunked in 1.0"),
        pytest.param(b"GET / HTTP/1.1\r\nhost: h\r\nx: a\r\n b\r\n\r\n", 400, id="folded header"),
        pytest.param(b"GET / HTTP/1.1\r\nhost: h\r\nx: a\rb\r\n\r\n", 400, id="bare CR"),
        pytest.param(b"GET / HTTP/1.1\r\nhost: h\r\nx: a\nb: c\r\n\r\n", 400, id="bare LF"),
        pytest.param(b"GET / HTTP/1.1\r\nhost: h\r\nx: a\0b\r\n\r\n", 400, id="NUL"),
        pytest.param(b"GET / HTTP/1.1\r\nhost: h\r\n: x\r\n\r\n", 400, id="no header name"),
        pytest.param(b"GET / HTTP/1.1\r\nhost: h\r\nno colon\r\n\r\n", 400, id="no colon"),
        pytest.param(b"GET / HTTP/1.1\r\nhost: h\r\nhost: i\r\n\r\n", 400, id="two hosts"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", 400, id="no host"),
        pytest.param(b"GET /a b HTTP/1.1\r\nhost: h\r\n\r\n", 400, id="space in target"),
        pytest.param(b"GET a HTTP/1.1\r\nhost: h\r\n\r\n", 400, id="target is no path"),
        pytest.param(b"GET / HTTP/2.0\r\nhost: h\r\n\r\n", 505, id="HTTP/2.0"),
        pytest.param(b"GET / HTTP/0.9\r\nhost: h\r\n\r\n", 505, id="HTTP/0.9"),
        pytest.param(b"GET / RTSP/1.0\r\nhost: h\r\n\r\n", 505, id="RTSP"),
        pytest.param(b"FROB / HTTP/1.1\r\nhost: h\r\n\r\n", 501, id="unknown method"),
        pytest.param(b"CONNECT h:1 HTTP/1.1\r\nhost: h\r\n\r\n", 501, id="tunnel"),
        pytest.param(POST_HEAD + b"expect: miracles\r\ncontent-length: 1\r\n\r\n", 417, id="expectation"),
        pytest.param(b"GET / HTTP/1.1\r\nhost: h\r\n" + b"x: y\r\n" * 101 + b"\r\n", 431, id="many headers"),
        pytest.param(b"GET / HTTP/1.1\r\nhost: h\r\nx: " + b"y" * 40_000, 431, id="endless header"),
        pytest.param(b"GET / HTTP/1.1\r\nhost: h\r\nx: " + b"y" * 40_000 + b"\r\n\r\n", 431, id="large head"),
        pytest.param(b"x" * 40_000, 431, id="endless nothing"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 501, id="TLS hello"),
    ],
)
def test_smuggling_and_nonsense_are_refused_and_the_connection_ends(data: bytes, status: int) -> None:
    place = Place()
    place.client.send(data)
    received = place.say(b"GET /smuggled HTTP/1.1\r\n" + HOST + b"\r\n")
    head, _, body = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert b"connection: close" in head
    assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}
    assert b"smuggled" not in received
    assert place.client.transport.eof_written
    for _ in range(5):
        place.server.wheel.advance()
    place.wire.pump()
    assert place.client.closed
    assert place.server.statistics.open == 0


def test_a_body_over_the_bound_is_refused_before_it_is_read() -> None:
    place = Place(Limits(body_bytes=10))
    assert place.say(POST_HEAD + b"content-length: 11\r\n\r\n").startswith(b"HTTP/1.1 413 ")
    assert place.app.gone == []


def test_a_chunked_body_over_the_bound_is_refused_on_the_way() -> None:
    place = Place(Limits(body_bytes=10))
    received = place.say(POST_HEAD + b"transfer-encoding: chunked\r\n\r\n" + b"6\r\nabcdef\r\n" * 2)
    assert received.startswith(b"HTTP/1.1 413 ")
    assert place.app.gone == ["/"]


def test_a_flood_of_trailers_is_not_collected() -> None:
    place = Place()
    place.say(POST_HEAD + b"transfer-encoding: chunked\r\n\r\n0\r\n")
    for _ in range(40):
        place.client.send(b"t: " + b"x" * 1000 + b"\r\n")
    assert place.say(b"").startswith(b"HTTP/1.1 400 ")


def test_a_client_that_expects_to_be_asked_is_asked_once() -> None:
    place = Place()
    assert (
        place.say(POST_HEAD + b"content-length: 2\r\nexpect: 100-continue\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    )
    assert place.say(b"ok").endswith(b"POST / ok")
    assert place.client.received.count(b"100 Continue") == 1


def test_a_client_that_is_refused_is_not_asked_for_its_body() -> None:
    place = Place()
    head = b"POST /early HTTP/1.1\r\n" + HOST + b"content-length: 2\r\nexpect: 100-continue\r\n\r\n"
    received = place.say(head)
    assert received.startswith(b"HTTP/1.1 403 ")
    assert b"connection: close" in received
    assert b"100 Continue" not in received


def test_a_small_unwanted_body_is_skipped_and_the_connection_kept() -> None:
    place = Place()
    place.say(b"POST /early HTTP/1.1\r\n" + HOST + b"content-length: 5\r\n\r\n12")
    assert place.say(b"345" + GET).endswith(b"GET /c?d ")


def test_a_large_unwanted_body_ends_the_connection_after_the_answer() -> None:
    place = Place()
    received = place.say(b"POST /early HTTP/1.1\r\n" + HOST + b"content-length: 9000000\r\n\r\n" + b"x" * 1000)
    assert b"connection: close" in received
    assert received.endswith(b"no")
    assert place.client.transport.eof_written


@pytest.mark.parametrize("upgrade", [b"h2c", b"websocket"])
@pytest.mark.parametrize("chunked", [False, True])
def test_an_offered_upgrade_is_ignored_and_the_body_read(upgrade: bytes, chunked: bool) -> None:
    place = Place()
    head = POST_HEAD + b"connection: Upgrade, HTTP2-Settings\r\nupgrade: %b\r\nhttp2-settings: x\r\n" % upgrade
    body = b"transfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n" if chunked else b"content-length: 2\r\n\r\nhi"
    assert place.say(head + body).endswith(b"POST / hi")
    assert place.say(GET).endswith(b"GET /c?d ")


def test_http_1_0_is_answered_in_its_own_way() -> None:
    place = Place()
    received = place.say(b"GET /stream HTTP/1.0\r\n\r\n")
    assert received.endswith(b"\r\n\r\nonetwo")
    assert b"chunked" not in received
    assert place.client.closed
    place = Place()
    assert b"connection: keep-alive" in place.say(b"GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n")
    assert not place.client.closed


def test_who_asks_for_a_close_gets_one() -> None:
    place = Place()
    assert b"connection: close" in place.say(b"GET / HTTP/1.1\r\n" + HOST + b"connection: foo, Close\r\n\r\n")
    assert place.client.closed


def test_head_has_a_length_and_no_body() -> None:
    received = Place().say(b"HEAD /x HTTP/1.1\r\n" + HOST + b"\r\n")
    assert received.endswith(b"content-length: 8\r\n\r\n")


def test_an_absolute_target_is_a_path() -> None:
    assert Place().say(b"GET http://h:80/p?q HTTP/1.1\r\n" + HOST + b"\r\n").endswith(b"GET /p?q ")


def test_a_request_that_dribbles_in_is_ended_in_time() -> None:
    place = Place(Limits(idle_s=5.0))
    place.say(b"GET / HT")
    for _ in range(4):
        place.server.wheel.advance()
        place.say(b"T")
    assert place.client.received == b""
    place.server.wheel.advance()
    place.server.wheel.advance()
    place.wire.pump()
    assert place.client.received.startswith(b"HTTP/1.1 408 ")


def test_a_body_that_dribbles_in_is_ended_in_time() -> None:
    place = Place(Limits(idle_s=5.0))
    place.say(POST_HEAD + b"content-length: 100\r\n\r\n")
    for _ in range(7):
        place.server.wheel.advance()
        place.say(b"x")
    assert place.client.received.startswith(b"HTTP/1.1 408 ")
    assert place.app.gone == ["/"]


def test_a_silent_connection_is_closed_and_a_waiting_one_is_not() -> None:
    place = Place(Limits(idle_s=5.0))
    waiting = MemoryClient(place.wire, place.server)
    waiting.send(b"GET /wait HTTP/1.1\r\n" + HOST + b"\r\n")
    place.wire.pump()
    for _ in range(20):
        place.server.wheel.advance()
    place.wire.pump()
    assert place.client.closed
    assert not waiting.closed


def test_a_client_that_never_reads_is_given_up() -> None:
    place = Place(Limits(idle_s=5.0))
    place.say(b"GET /wait HTTP/1.1\r\n" + HOST + b"\r\n")
    place.client.transport.reads_slowly = True
    exchange = place.app.open[0]
    exchange.start(200, [])
    exchange.send(b"x" * 100_000)
    place.wire.pump()
    assert not exchange.writable
    for _ in range(20):
        place.server.wheel.advance()
    place.wire.pump()
    assert place.app.gone == ["/wait"]


def test_connections_over_the_limit_are_told() -> None:
    place = Place(Limits(connections=1))
    second = MemoryClient(place.wire, place.server)
    place.wire.pump()
    assert second.received.startswith(b"HTTP/1.1 503 ")
    assert place.say(GET).endswith(b"GET /c?d ")


def test_a_client_that_leaves_is_noticed_once() -> None:
    place = Place()
    place.say(b"GET /wait HTTP/1.1\r\n" + HOST + b"\r\n")
    place.client.leave()
    place.wire.pump()
    assert place.app.gone == ["/wait"]
    place.app.open[0].respond(200, [], b"late")
    assert place.client.received == b""
    assert place.server.statistics.open == 0


def test_a_defect_of_the_application_is_a_500_and_a_closed_connection() -> None:
    place = Place()
    received = place.say(b"GET /defect HTTP/1.1\r\n" + HOST + b"\r\n")
    assert received.startswith(b"HTTP/1.1 500 ")
    assert place.app.gone == ["/defect"]
    assert place.server.statistics.defects == 1


def test_a_server_that_stops_closes_what_is_idle_and_lets_the_rest_finish() -> None:
    place = Place()
    busy = MemoryClient(place.wire, place.server)
    busy.send(b"GET /wait HTTP/1.1\r\n" + HOST + b"\r\n")
    place.wire.pump()
    place.server.stop_accepting()
    place.wire.pump()
    assert place.client.closed
    assert not busy.closed
    place.app.open[0].respond(200, [], b"bye")
    place.wire.pump()
    assert busy.received.endswith(b"bye")
    assert b"connection: close" in busy.received
    assert busy.closed
