"""Calls over keep-alive connections, in memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidegate.clock import ManualClock
from tidegate.testing.memory_transport import EngineRequest, MemoryNetwork, MemoryWire
from tidegate.transport.client import Call, ConnectionPool
from tidegate.wire.http import Headers

REQUEST = b"POST /x HTTP/1.1\r\nhost: e\r\ncontent-length: 2\r\n\r\n"


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


class Place:
    """A pool and the engine it talks to."""

    def __init__(self) -> None:
        self.wire = MemoryWire()
        self.network = MemoryNetwork(self.wire)
        self.clock = ManualClock()
        self.asked: list[EngineRequest] = []
        self.network.listen("e", 1, self.asked.append)
        self.pool = ConnectionPool("e", 1, now=self.clock.now, network=self.network)

    def call(self) -> tuple[Call, Heard]:
        heard = Heard()
        call = self.pool.call(REQUEST, b"hi", heard)
        self.wire.pump()
        return call, heard

    def at_rest(self) -> bool:
        return self.pool.calls_open == 0 and self.pool.open_connections == self.pool.idle


def test_one_connection_serves_one_call_after_the_other() -> None:
    place = Place()
    for number in range(3):
        _, heard = place.call()
        assert place.asked[number].body == b"hi"
        place.asked[number].answer(b"yes")
        place.wire.pump()
        assert (heard.events, heard.body) == ([200, "complete"], b"yes")
    assert place.pool.dialled == 1
    assert place.at_rest()


def test_the_connection_used_last_is_used_next() -> None:
    place = Place()
    for _ in range(2):
        place.call()
    first, second = place.asked
    second.answer(b"")
    first.answer(b"")
    place.wire.pump()
    place.call()
    third = place.asked[2]
    third.raw(b"")
    first.cut()
    place.wire.pump()
    assert third.cancelled


def test_a_connection_that_idled_too_long_is_not_used_again() -> None:
    place = Place()
    place.call()
    place.asked[0].answer(b"")
    place.wire.pump()
    place.clock.advance(place.pool.idle_s + 1)
    place.pool.expire()
    place.wire.pump()
    assert place.pool.open_connections == 0
    place.call()
    assert place.pool.dialled == 2


def test_a_reused_connection_that_was_dead_is_replaced_once() -> None:
    place = Place()
    place.call()
    place.asked[0].answer(b"")
    place.wire.pump()
    heard = Heard()
    place.pool.call(REQUEST, b"hi", heard)
    place.asked[0].cut()
    place.wire.pump()
    assert heard.events == []
    place.asked[-1].cut()
    place.wire.pump()
    assert heard.events == ["reset"]
    assert place.pool.dialled == 2
    assert place.at_rest()


def test_nobody_listening_is_refused() -> None:
    place = Place()
    place.network.stop_listening("e", 1)
    _, heard = place.call()
    assert heard.events == ["refused"]
    assert place.at_rest()


def test_an_answer_cut_in_the_middle_is_told() -> None:
    place = Place()
    _, heard = place.call()
    place.asked[0].raw(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf")
    place.asked[0].cut()
    place.wire.pump()
    assert (heard.events, heard.body) == ([200, "reset"], b"half")
    assert place.at_rest()


def test_garbage_is_told_and_its_connection_closed() -> None:
    place = Place()
    _, heard = place.call()
    place.asked[0].raw(b"SSH-2.0-x\r\n")
    place.wire.pump()
    assert heard.events == ["garbage"]
    assert place.asked[0].cancelled


def test_a_head_that_never_ends_is_garbage() -> None:
    place = Place()
    _, heard = place.call()
    for _ in range(100):
        place.asked[0].raw(
            b"x: " + b"y" * 1000 + b"\r\n" if len(heard.events) else b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70_000
        )
        place.wire.pump()
        if heard.events:
            break
    assert heard.events == ["garbage"]


def test_an_answer_without_a_length_ends_with_its_connection() -> None:
    place = Place()
    _, heard = place.call()
    place.asked[0].raw(b"HTTP/1.1 200 OK\r\n\r\nall of it")
    place.asked[0].cut()
    place.wire.pump()
    assert (heard.events, heard.body) == ([200, "complete"], b"all of it")
    assert place.at_rest()


def test_a_preliminary_answer_is_passed_over() -> None:
    place = Place()
    _, heard = place.call()
    place.asked[0].raw(b"HTTP/1.1 100 Continue\r\n\r\n")
    place.asked[0].answer(b"now")
    place.wire.pump()
    assert (heard.events, heard.body) == ([200, "complete"], b"now")


def test_bytes_after_an_answer_end_its_connection() -> None:
    place = Place()
    _, heard = place.call()
    place.asked[0].answer(b"yes")
    place.asked[0].raw(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\npoison")
    place.wire.pump()
    assert heard.body == b"yes"
    place.call()
    assert place.pool.dialled == 2


@given(cuts=st.lists(st.integers(1, 40), max_size=30), chunked=st.booleans())
def test_an_answer_is_the_same_however_it_is_split(cuts: list[int], chunked: bool) -> None:
    place = Place()
    _, heard = place.call()
    body = b"tide " * 20
    data = b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n" + body
    if chunked:
        pieces = b"".join(b"%x\r\n%b\r\n" % (7, body[i : i + 7]) for i in range(0, 98, 7))
        data = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + pieces + b"2\r\ne \r\n0\r\n\r\n"
    for cut in cuts:
        if data[:cut]:
            place.asked[0].raw(data[:cut])
        data = data[cut:]
    if data:
        place.asked[0].raw(data)
    place.wire.pump()
    assert (heard.events, heard.body) == ([200, "complete"], body)
    assert place.pool.idle == 1


def test_a_cancelled_call_closes_its_connection_and_says_nothing_more() -> None:
    place = Place()
    call, heard = place.call()
    place.asked[0].start_stream()
    place.wire.pump()
    call.cancel()
    place.asked[0].piece(b"late")
    place.wire.pump()
    assert heard.events == [200]
    assert place.asked[0].cancelled
    assert place.at_rest()


def test_a_call_cancelled_while_it_is_being_connected_never_goes_out() -> None:
    place = Place()
    heard = Heard()
    place.pool.call(REQUEST, b"hi", heard).cancel()
    place.wire.pump()
    assert place.asked == []
    assert heard.events == []
    assert place.at_rest()


def test_a_paused_call_stops_the_engine_and_its_connection_is_usable_afterwards() -> None:
    place = Place()
    call, heard = place.call()
    call.pause()
    place.asked[0].answer(b"held")
    place.wire.pump()
    assert heard.body == b""
    call.resume()
    place.wire.pump()
    assert heard.body == b"held"
    _, second = place.call()
    place.asked[1].answer(b"next")
    place.wire.pump()
    assert second.body == b"next"
    assert place.pool.dialled == 1
