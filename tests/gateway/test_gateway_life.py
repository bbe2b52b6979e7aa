"""A request's life through the gateway, in memory and step by step."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.clock import ManualClock
from tidegate.errors import Outcome
from tidegate.spec import TenantSpec
from tidegate.testing.house import House, chat, post, spec_of
from tidegate.testing.memory_transport import MemoryClient

ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
WORD = b'data: {"choices":[{"index":0,"delta":{"content":"tide \xe6\xbd\xae"},"finish_reason":null}]}\n\n'
LAST = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2,"total_tokens":9}}\n\n'
DONE = b"data: [DONE]\n\n"
ANSWER = b'{"choices":[{"message":{"content":"hi"}}],"usage":{"prompt_tokens":7,"completion_tokens":2}}'


def parts(client: MemoryClient) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and unframed body of the first answer; the body must be whole."""
    head, _, rest = client.received.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines[1:])
    status = int(lines[0].split(" ")[1])
    if "content-length" in headers:
        assert len(rest) == int(headers["content-length"])
        return status, headers, rest
    assert rest.endswith(b"0\r\n\r\n")
    return status, headers, unchunked(rest)


def unchunked(data: bytes) -> bytes:
    """The body so far; pieces that are not whole are left out."""
    body = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        length = int(size, 16)
        if length == 0 or len(data) < length + 2:
            break
        body += data[:length]
        data = data[length + 2 :]
    return body


def sent_so_far(client: MemoryClient) -> bytes:
    return unchunked(client.received.partition(b"\r\n\r\n")[2])


def error_of(body: bytes) -> dict[str, Any]:
    error = json.loads(body)["error"]
    assert set(error) >= {"message", "type", "param", "code"}
    return dict(error)


def test_a_whole_answer_passes_untouched(house: House) -> None:
    client = house.ask(headers=b"x-request-id: abc-1\r\ncookie: a=b\r\nconnection: keep-alive\r\n")
    (engine,) = house.asked
    assert engine.body == chat()
    assert engine.headers[b"x-request-id"] == b"abc-1"
    assert engine.headers[b"cookie"] == b"a=b"
    assert b"connection" not in engine.headers
    engine.answer(ANSWER)
    house.wire.pump()
    status, headers, body = parts(client)
    assert (status, body) == (200, ANSWER)
    assert headers["x-request-id"] == "abc-1"
    assert house.ended(Outcome.COMPLETED) == 1
    assert house.at_rest()
    assert house.gateway.meters.by_model["m"].output_tokens == 2


def test_every_request_without_an_id_gets_its_own(house: House) -> None:
    ids = set()
    for _ in range(3):
        client = house.ask()
        house.asked[-1].answer(ANSWER)
        house.wire.pump()
        ids.add(parts(client)[1]["x-request-id"])
    assert len(ids) == 3


def test_usage_that_was_not_asked_for_is_hidden_however_it_is_spaced(house: House) -> None:
    client = house.ask(b',"stream":true')
    engine = house.asked[-1]
    engine.start_stream()
    for event in (ROLE, WORD, WORD, LAST, USAGE, DONE):
        engine.piece(event.replace(b":", b": ").replace(b"data:  ", b"data: ") if event != DONE else event)
        house.wire.pump()
    engine.finish()
    house.wire.pump()
    assert b"usage" not in parts(client)[2]
    assert parts(client)[2].endswith(DONE)
    assert house.gateway.meters.by_model["m"].output_tokens == 2


@pytest.mark.parametrize("path", ["/v1/../metrics", "/v1/%63hat/completions", "/v1//chat/completions", "/v1/./score"])
def test_a_path_that_the_next_server_may_read_otherwise_is_not_passed_on(house: House, path: str) -> None:
    client = MemoryClient(house.wire, house.gateway.server)
    client.send(post(chat(), path.encode()))
    house.wire.pump()
    assert parts(client)[0] == 404
    assert house.asked == []


@given(cuts=st.lists(st.integers(1, 60), max_size=40), crlf=st.booleans(), asked=st.booleans())
def test_a_stream_is_untouched_however_it_is_split(cuts: list[int], crlf: bool, asked: bool) -> None:
    """But for the usage event, which a client gets that asked for it, and no other."""
    house = House()
    client = house.ask(b',"stream":true' + (b',"stream_options":{"include_usage":true}' if asked else b""))
    engine = house.asked[-1]
    assert json.loads(engine.body)["stream_options"] == {"include_usage": True}
    engine.start_stream()
    house.wire.pump()
    text = ROLE + WORD * 3 + b": ping\n\n" + LAST + USAGE + DONE
    rest = text.replace(b"\n", b"\r\n") if crlf else text
    whole = rest if asked else rest.replace(USAGE.replace(b"\n", b"\r\n") if crlf else USAGE, b"")
    for cut in cuts:
        engine.piece(rest[:cut]) if rest[:cut] else None
        rest = rest[cut:]
        house.wire.pump()
        assert not rest or sent_so_far(client) in _event_prefixes(whole)
    if rest:
        engine.piece(rest)
    engine.finish()
    house.wire.pump()
    assert parts(client)[2] == whole
    assert house.ended(Outcome.COMPLETED) == 1
    assert house.gateway.meters.by_model["m"].prompt_tokens == 7
    assert house.at_rest()


def test_asking_for_usage_leaves_the_rest_of_the_body_as_the_client_wrote_it(house: House) -> None:
    written = (
        b'  {"model":"m", "seed" : 1e0, "messages":[{"role":"user","content":"\\u6f6e \xe6\xbd\xae"}],"stream":true }'
    )
    client = house.client()
    client.send(post(written))
    house.wire.pump()
    assert house.asked[-1].body == b'{"stream_options":{"include_usage":true},' + written.strip()[1:]


@pytest.mark.parametrize("extra", [b"", b',"stream":true,"stream_options":{"include_usage":false}'])
def test_a_body_that_says_what_it_wants_is_passed_on_as_it_is(house: House, extra: bytes) -> None:
    house.ask(extra)
    assert house.asked[-1].body == chat(extra)


@pytest.mark.parametrize("after", [b": ping\n\n" * 4, b"".join([b": a\n\n", b": b\n\n"])])
def test_comments_after_the_finish_reason_do_not_make_a_whole_stream_a_broken_one(house: House, after: bytes) -> None:
    client, engine = house.stream()
    for piece in [WORD, LAST, *[event + b"\n\n" for event in after.split(b"\n\n") if event]]:
        engine.piece(piece)
        house.wire.pump()
    engine.finish()
    house.wire.pump()
    assert parts(client)[2] == WORD + LAST + after
    assert house.ended(Outcome.COMPLETED) == 1


@pytest.mark.parametrize("path", [b"/v1/load_lora_adapter", b"/v1/unload_lora_adapter"])
def test_what_changes_an_engine_is_not_there_for_tenants(house: House, path: bytes) -> None:
    client = house.client()
    client.send(post(chat(), path))
    house.wire.pump()
    assert parts(client)[0] == 404
    assert not house.asked


def _event_prefixes(whole: bytes) -> set[bytes]:
    blank = b"\r\n\r\n" if b"\r\n" in whole else b"\n\n"
    events = [event + blank for event in whole.split(blank)[:-1]]
    return {b"".join(events[:count]) for count in range(len(events) + 1)}


@given(cuts=st.lists(st.integers(1, 80), max_size=30), chunked=st.booleans())
def test_a_request_arrives_whole_however_it_is_split(cuts: list[int], chunked: bool) -> None:
    house = House()
    client = house.client()
    body = chat(b',"user":"\xe6\xbd\xae"')
    data = post(body)
    if chunked:
        pieces = b"".join(b"%x\r\n%b\r\n" % (len(body[i : i + 9]), body[i : i + 9]) for i in range(0, len(body), 9))
        data = (
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\ntransfer-encoding: chunked\r\n\r\n%b0\r\n\r\n" % pieces
        )
    for cut in cuts:
        if data[:cut]:
            client.send(data[:cut])
        data = data[cut:]
    client.send(data) if data else None
    house.wire.pump()
    (engine,) = house.asked
    assert engine.body == body
    assert engine.headers[b"content-length"] == b"%d" % len(body)


@pytest.mark.parametrize(
    ("request_bytes", "status", "code"),
    [
        (b"GET /nothing HTTP/1.1\r\nhost: g\r\n\r\n", 404, "unknown_path"),
        (b"GET /v1/chat/completions HTTP/1.1\r\nhost: g\r\n\r\n", 405, "method_not_allowed"),
        (b"DELETE /v1/models HTTP/1.1\r\nhost: g\r\n\r\n", 405, "method_not_allowed"),
        (b"GET /v1/models/absent HTTP/1.1\r\nhost: g\r\n\r\n", 404, "model_not_found"),
        (post(b"{"), 400, "invalid_json"),
        (post(b'{"model":"m"}'), 400, "missing_field"),
        (post(b'{"model":"m","model":"m","messages":[1]}'), 400, "duplicate_field"),
        (post(b'{"model":"other","messages":[{}]}'), 404, "model_not_found"),
        (post(b'{"messages":[{}]}'), 400, "missing_field"),
    ],
)
def test_what_cannot_be_served_is_said_in_openai_s_shape(
    house: House, request_bytes: bytes, status: int, code: str
) -> None:
    client = house.client()
    client.send(request_bytes)
    house.wire.pump()
    told, headers, body = parts(client)
    assert told == status
    assert error_of(body)["code"] == code
    assert headers["x-tidegate-reason" if "x-tidegate-reason" in headers else "x-request-id"]
    assert not house.asked
    assert house.at_rest()
    assert not client.closed


def test_a_wrong_method_names_the_right_one(house: House) -> None:
    client = house.client()
    client.send(b"GET /v1/completions HTTP/1.1\r\nhost: g\r\n\r\n")
    house.wire.pump()
    assert parts(client)[1]["allow"] == "POST"


def test_models_come_from_the_pools(house: House) -> None:
    client = house.client()
    client.send(b"GET /v1/models HTTP/1.1\r\nhost: g\r\n\r\n")
    house.wire.pump()
    assert [entry["id"] for entry in json.loads(parts(client)[2])["data"]] == ["m"]


def test_an_inference_path_nobody_listed_goes_through_admission(house: House) -> None:
    client = house.client()
    client.send(post(b'{"model":"m","input":"x"}', path=b"/v1/inventions?a=1"))
    house.wire.pump()
    assert house.asked[0].target == "/v1/inventions?a=1"
    house.asked[0].answer(b"{}")
    house.wire.pump()
    assert parts(client)[0] == 200
    assert house.ended(Outcome.COMPLETED) == 1


def test_keys_are_compared_by_hash_and_stay_here() -> None:
    hashed = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"  # of "secret"
    house = House(spec_of(tenants=[TenantSpec(name="acme", key_sha256=[hashed], priority="high")]))
    refused = house.ask(headers=b"authorization: Bearer wrong\r\n")
    assert parts(refused)[0] == 401
    assert error_of(parts(refused)[2])["code"] == "invalid_api_key"
    assert not house.asked
    assert house.ended(Outcome.UNAUTHORIZED) == 1
    house.ask(headers=b"Authorization: bearer secret\r\n")
    house.ask(headers=b"x-api-key: secret\r\n")
    assert len(house.asked) == 2
    assert all(b"authorization" not in e.headers and b"x-api-key" not in e.headers for e in house.asked)


def test_without_tenants_the_key_is_the_engine_s(house: House) -> None:
    house.ask(headers=b"authorization: Bearer mine\r\n")
    assert house.asked[0].headers[b"authorization"] == b"Bearer mine"


# --- engines that fail ---


def test_a_refused_connection_is_retried_elsewhere(house: House) -> None:
    for _ in range(10):  # the retry budget is a share of the traffic
        house.ask()
        house.asked[-1].answer(ANSWER)
    house.wire.pump()
    dead = house.gateway.gate.instances[0]
    house.network.stop_listening("engine", 1)
    for upstream in house.gateway.upstreams.values():
        upstream.close()
    before = len(house.asked)
    clients = [house.ask() for _ in range(2)]
    assert not dead.ready
    for engine in house.asked[before:]:
        engine.answer(ANSWER)
    house.wire.pump()
    assert [parts(client)[0] for client in clients] == [200, 200]
    assert house.at_rest()


def test_nothing_of_a_broken_attempt_is_seen_before_the_first_token(house: House) -> None:
    for _ in range(10):
        house.ask()
        house.asked[-1].answer(ANSWER)
        house.wire.pump()
    client, engine = house.stream()
    engine.piece(ROLE)
    house.wire.pump()
    assert client.received == b""
    engine.cut()
    house.wire.pump()
    second = house.asked[-1]
    assert second is not engine
    second.start_stream()
    second.piece(ROLE + WORD + LAST + DONE)
    second.finish()
    house.wire.pump()
    assert parts(client)[2] == ROLE + WORD + LAST + DONE
    assert house.gateway.meters.by_model["m"].retries == 1
    assert house.at_rest()


@pytest.mark.parametrize("how", ["cut", "quiet end", "garbage", "half an event"])
def test_a_stream_broken_after_its_first_token_ends_with_one_error_event(house: House, how: str) -> None:
    client, engine = house.stream()
    engine.piece(ROLE + WORD)
    house.wire.pump()
    if how == "half an event":
        engine.piece(WORD[:20])
    if how == "quiet end":
        engine.finish()
    elif how == "garbage":
        engine.raw(b"not a chunk size\r\n")
    else:
        engine.cut()
    house.wire.pump()
    body = parts(client)[2]
    assert body.startswith(ROLE + WORD)
    event = body[len(ROLE + WORD) :]
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    assert error_of(event[6:])["code"] == "stream_broken"
    assert body.count(b'"error"') == 1
    assert house.ended(Outcome.STREAM_BROKEN) == 1
    assert house.at_rest()


def test_an_error_the_engine_reports_in_its_stream_is_told_once(house: House) -> None:
    client, engine = house.stream()
    engine.piece(ROLE + WORD)
    engine.piece(b'data: {"error":{"message":"EngineCore died","type":"InternalServerError","code":500}}\n\n' + DONE)
    engine.finish()
    house.wire.pump()
    assert parts(client)[2].count(b'"error"') == 1
    assert house.ended(Outcome.STREAM_BROKEN) == 1
    assert house.at_rest()


def test_an_answer_cut_after_done_is_complete(house: House) -> None:
    client, engine = house.stream()
    engine.piece(WORD + LAST + DONE)
    house.wire.pump()
    engine.cut()
    house.wire.pump()
    assert parts(client)[2] == WORD + LAST + DONE
    assert house.ended(Outcome.COMPLETED) == 1


def test_a_whole_answer_cut_in_the_middle_is_a_502_and_not_half_an_answer() -> None:
    house = House(spec_of(instances=1))
    client = house.ask()
    house.asked[0].raw(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n{")
    house.asked[0].cut()
    house.wire.pump()
    status, headers, body = parts(client)
    assert status == 502
    assert error_of(body)["code"] == "engine_unreachable"
    assert headers["x-should-retry"] == "true"
    assert house.at_rest()


def test_the_engine_s_own_refusal_passes_as_it_came(house: House) -> None:
    client = house.ask()
    told = b'{"object":"error","message":"too long","code":400}'
    house.asked[0].answer(told, status=400)
    house.wire.pump()
    assert parts(client)[0::2] == (400, told)
    assert house.ended(Outcome.ENGINE_REFUSED) == 1
    assert house.at_rest()


def test_a_busy_engine_s_answer_passes_with_its_retry_after_when_nobody_else_has_room() -> None:
    house = House(spec_of(instances=1))
    client = house.ask()
    house.asked[0].answer(b"{}", status=503, headers=b"retry-after: 7\r\n")
    house.wire.pump()
    status, headers, _ = parts(client)
    assert (status, headers["retry-after"]) == (503, "7")
    assert house.at_rest()


def test_a_huge_whole_answer_flows_through_without_being_held(house: House) -> None:
    client = house.ask()
    engine = house.asked[0]
    body = b"x" * 3_000_000
    engine.raw(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 3000000\r\n\r\n")
    for start in range(0, 2_000_000, 100_000):
        engine.raw(body[start : start + 100_000])
    house.wire.pump()
    assert len(client.received) > 1_500_000
    engine.raw(body[2_000_000:])
    house.wire.pump()
    assert parts(client)[2] == body
    assert house.at_rest()


def test_an_event_that_never_ends_is_not_held_for_ever(house: House) -> None:
    client, engine = house.stream()
    engine.piece(WORD)
    for _ in range(20):
        engine.piece(b"x" * 100_000)
    house.wire.pump()
    assert engine.cancelled
    assert error_of(parts(client)[2][len(WORD) + 6 :])["code"] == "stream_broken"
    assert house.at_rest()


# --- clients that leave or are slow ---


@pytest.mark.parametrize("stage", ["body", "queued", "sent", "prelude", "streaming", "collecting"])
def test_a_client_that_leaves_frees_everything_at_every_stage(stage: str) -> None:
    house = House(spec_of(max_in_flight=1, instances=1))
    if stage == "queued":
        house.ask()
    client = house.client()
    request = post(chat(b',"stream":true'))
    client.send(request[:-5] if stage == "body" else request)
    house.wire.pump()
    if stage in ("prelude", "streaming"):
        house.asked[0].start_stream()
        house.asked[0].piece(ROLE if stage == "prelude" else WORD)
    elif stage == "collecting":
        house.asked[0].raw(b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n{")
    house.wire.pump()
    client.leave()
    house.wire.pump()
    if stage == "queued":
        assert len(house.asked) == 1
        house.asked[0].answer(ANSWER)
        house.wire.pump()
    elif stage != "body":
        assert house.asked[0].cancelled
        assert house.ended(Outcome.CLIENT_CANCELLED) == 1
    assert house.at_rest()


def test_a_slow_client_slows_its_engine_and_nothing_is_lost(house: House) -> None:
    client, engine = house.stream()
    client.transport.reads_slowly = True
    sent = 0
    while engine.wanted():
        engine.piece(WORD * 50)
        house.wire.pump()
        sent += 50
        house.clock.advance(0.01)
        assert sent < 5000, "the gateway buffers without a bound"
    house.wait(120.0)  # it is not the engine that is slow: no time-out
    assert not engine.cancelled
    client.transport.catch_up()
    house.wire.pump()
    assert engine.wanted()
    engine.piece(LAST + DONE)
    engine.finish()
    house.wire.pump()
    assert parts(client)[2] == WORD * sent + LAST + DONE
    assert house.at_rest()


def test_a_client_that_pipelines_gets_its_answers_in_order(house: House) -> None:
    client = house.client()
    client.send(post(chat()) + b"GET /v1/models HTTP/1.1\r\nhost: g\r\n\r\n")
    house.wire.pump()
    assert client.received == b""
    house.asked[0].answer(ANSWER)
    house.wire.pump()
    assert client.received.index(ANSWER) < client.received.index(b'"object":"list"')


# --- room, time and the end ---


def test_what_finds_no_room_waits_and_what_finds_no_queue_is_told_when_to_come_back() -> None:
    house = House(spec_of(max_in_flight=1, queue=1, instances=1))
    first, second, third = house.ask(), house.ask(), house.ask()
    assert len(house.asked) == 1
    status, headers, body = parts(third)
    assert status == 429
    assert error_of(body)["code"] == headers["x-tidegate-reason"] == "queue_full"
    assert error_of(body)["retryable"] is True
    assert int(headers["retry-after"]) >= 1
    house.asked[0].answer(ANSWER)
    house.wire.pump()
    house.asked[1].answer(ANSWER)
    house.wire.pump()
    assert parts(first)[0] == parts(second)[0] == 200
    assert house.at_rest()


def test_an_engine_without_a_first_token_is_a_504(house: House) -> None:
    client, engine = house.stream()
    engine.piece(ROLE)
    house.wire.pump()
    house.wait(house.spec.gateway.timeouts.first_token_s + 1)
    assert parts(client)[0] == 504
    assert engine.cancelled
    assert house.ended(Outcome.ENGINE_TIMEOUT) == 1
    assert house.at_rest()


def test_a_stream_that_stands_still_ends_with_an_error_event(house: House) -> None:
    client, engine = house.stream()
    engine.piece(WORD)
    house.wire.pump()
    house.wait(house.spec.gateway.timeouts.gap_s + 1)
    assert error_of(parts(client)[2][len(WORD) + 6 :])["code"] == "stream_broken"
    assert engine.cancelled
    assert house.at_rest()


def test_a_drain_lets_streams_finish_and_refuses_what_comes(house: House) -> None:
    client, engine = house.stream()
    engine.piece(WORD)
    house.wire.pump()
    other = house.client()
    other.send(post(chat())[:-3])
    house.wire.pump()
    house.gateway.drain()
    house.wire.pump()
    other.send(post(chat())[-3:])
    house.wire.pump()
    assert parts(other)[0] == 503
    assert parts(other)[1]["connection"] == "close"
    engine.piece(LAST + DONE)
    engine.finish()
    house.wire.pump()
    assert parts(client)[2] == WORD + LAST + DONE
    assert client.closed
    assert house.at_rest()


def test_the_end_of_a_drain_is_told_inside_the_stream(house: House) -> None:
    client, engine = house.stream()
    engine.piece(WORD)
    house.wire.pump()
    house.gateway.drain()
    house.gateway.end_drain()
    house.wire.pump()
    assert b'"error"' in parts(client)[2]
    assert engine.cancelled
    assert house.at_rest()


def test_two_gateways_in_one_process_know_nothing_of_each_other(house: House) -> None:
    other = House()
    house.ask()
    assert len(house.asked) == 1
    assert not other.asked
    assert other.at_rest()
    assert other.gateway.server.statistics.requests == 0


class FailingClock(ManualClock):
    """Fails once when told to, as a defect anywhere under the gateway would."""

    fails = False

    def now(self) -> float:
        if self.fails:
            self.fails = False
            raise ZeroDivisionError
        return super().now()


def test_a_defect_costs_one_request_and_leaks_nothing() -> None:
    clock = FailingClock(100.0)
    house = House(spec_of(instances=1), clock)
    client = house.ask()
    clock.fails = True
    house.asked[0].answer(b"{}", status=500)
    house.wire.pump()
    assert not clock.fails
    assert client.received.startswith(b"HTTP/1.1 5")
    assert house.at_rest()


def test_tokens_are_counted_where_nobody_tells_them(house: House) -> None:
    client, engine = house.stream()
    engine.piece(ROLE)
    for _ in range(5):
        engine.piece(WORD)
        house.wire.pump()
    engine.piece(LAST + DONE)
    engine.finish()
    house.wire.pump()
    assert parts(client)[0] == 200
    assert house.gateway.meters.by_model["m"].output_tokens == 5
    assert house.gateway.meters.by_model["m"].gap.count >= 4
    assert house.gateway.meters.by_model["m"].ttft.count == 1
