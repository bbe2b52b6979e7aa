"""The driver against a real HTTP server on loopback that misbehaves: every request is accounted for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tidegate.errors import Outcome, UnavailableError
from tidegate.load.driver import Driver
from tidegate.load.prompts import PromptBook
from tidegate.load.runner import LoadJob, LoadRun
from tidegate.load.target import Target
from tidegate.spec.cluster import SloSpec
from tidegate.testing.wordserver import DONE, FINISH, JSON, ROLE, SSE, WordServer, event, usage, word
from tidegate.traffic.figures import figures_of
from tidegate.traffic.plan import PlannedRequest
from tidegate.traffic.record import PhaseMark, RequestRecord
from tidegate.transport.server import Exchange, HttpServer

Behaviour = Callable[[Exchange, dict[str, Any]], None]


class Engine:
    """Answers by what the request's `max_tokens` asks for; anything without a behaviour is a good stream."""

    def __init__(self, behaviours: dict[int, Behaviour] | None = None) -> None:
        self.behaviours = behaviours or {}
        self.bodies: list[dict[str, Any]] = []
        self.heads: list[dict[bytes, bytes]] = []
        self.gone = 0
        self.open: list[Exchange] = []

    def on_head(self, exchange: Exchange) -> None:
        exchange.context = bytearray()

    def on_body(self, exchange: Exchange, data: bytes) -> None:
        assert isinstance(exchange.context, bytearray)
        exchange.context += data

    def on_request_complete(self, exchange: Exchange) -> None:
        if exchange.method == "GET":
            exchange.respond(404, JSON, b"{}")
            return
        assert isinstance(exchange.context, bytearray)
        body = msgspec.json.decode(exchange.context)
        self.bodies.append(body)
        self.heads.append(dict(exchange.headers))
        self.behaviours.get(body["max_tokens"], good)(exchange, body)
        self.open.append(exchange)

    def on_gone(self, exchange: Exchange) -> None:
        self.gone += 1

    def on_writable(self, exchange: Exchange, writable: bool) -> None:
        pass


def good(exchange: Exchange, body: dict[str, Any]) -> None:
    WordServer().answer(exchange, body)


def refuse(status: int, code: object) -> Behaviour:
    def behave(exchange: Exchange, body: dict[str, Any]) -> None:
        exchange.respond(status, JSON, msgspec.json.encode({"error": {"message": "no", "code": code}}))

    return behave


def stream_of(*pieces: bytes, cut: bool = False) -> Behaviour:
    def behave(exchange: Exchange, body: dict[str, Any]) -> None:
        exchange.start(200, SSE)
        for piece in pieces:
            exchange.send(piece)
        loop = asyncio.get_running_loop()
        loop.call_later(0.02, exchange.abort) if cut else exchange.finish()

    return behave


def hang(exchange: Exchange, body: dict[str, Any]) -> None:
    exchange.start(200, SSE)
    exchange.send(word(0))


def cut_at_once(exchange: Exchange, body: dict[str, Any]) -> None:
    exchange.abort()


def plans_of(*output_tokens: int, stream: bool = True, every_s: float = 0.0) -> list[PlannedRequest]:
    return [
        PlannedRequest(index, index * every_s, 20, tokens, phase="steady", stream=stream)
        for index, tokens in enumerate(output_tokens)
    ]


async def drive(
    engine: Engine,
    plans: list[PlannedRequest],
    *,
    connections: int = 100,
    timeout_s: float = 5.0,
    stop_after_s: float | None = None,
) -> Driver:
    server = HttpServer(engine)
    port = await server.start("127.0.0.1", 0)
    driver = Driver(
        Target(f"http://127.0.0.1:{port}", "m", "secret"),
        PromptBook(1, "m"),
        slo_itl_s=0.05,
        connections=connections,
        timeout_s=timeout_s,
        verify_words=True,
    )
    if stop_after_s is not None:
        asyncio.get_running_loop().call_later(stop_after_s, driver.stop)
    await driver.run(plans)
    await asyncio.sleep(0.05)
    await server.close()
    return driver


def by_tokens(records: list[RequestRecord]) -> dict[int, RequestRecord]:
    return {record.plan.output_tokens: record for record in records}


TROUBLES: dict[int, tuple[Behaviour, Outcome, str]] = {
    11: (refuse(429, "queue_full"), Outcome.QUEUE_FULL, "queue_full"),
    12: (refuse(429, None), Outcome.OVERLOADED, "http_429"),
    13: (refuse(500, 500), Outcome.ENGINE_ERROR, "500"),
    14: (refuse(503, "draining"), Outcome.DRAINING, "draining"),
    15: (refuse(404, "model_not_found"), Outcome.UNKNOWN_MODEL, "model_not_found"),
    16: (refuse(400, "context_length_exceeded"), Outcome.ENGINE_REFUSED, "context_length_exceeded"),
    17: (refuse(401, "invalid_api_key"), Outcome.UNAUTHORIZED, "invalid_api_key"),
    18: (refuse(504, "engine_timeout"), Outcome.ENGINE_TIMEOUT, "engine_timeout"),
    21: (stream_of(ROLE, word(0), word(1)), Outcome.TRUNCATED, "no_finish_reason"),
    22: (stream_of(ROLE, word(0), FINISH, usage(7, 1)), Outcome.TRUNCATED, "no_done"),
    23: (stream_of(ROLE, word(0), word(1), cut=True), Outcome.TRUNCATED, "reset"),
    24: (
        stream_of(word(0), event(error={"message": "x", "code": "stream_broken"}), cut=True),
        Outcome.STREAM_BROKEN,
        "stream_broken",
    ),
    25: (stream_of(event(error={"message": "x", "type": "InternalServerError"})), Outcome.ENGINE_ERROR, ""),
    26: (cut_at_once, Outcome.ENGINE_UNREACHABLE, "reset"),
    27: (lambda exchange, body: exchange.respond(200, JSON, b"{}"), Outcome.ENGINE_ERROR, "not_a_stream"),
}


def test_every_kind_of_trouble_is_typed_and_every_request_accounted_for() -> None:
    engine = Engine({tokens: behaviour for tokens, (behaviour, _, _) in TROUBLES.items()})
    plans = plans_of(3, *TROUBLES, 4, every_s=0.002)
    driver = asyncio.run(drive(engine, plans))
    found = by_tokens(driver.records)
    assert driver.sent == len(plans) == len(driver.records)
    assert driver.in_flight == 0
    for tokens, (_, outcome, reason) in TROUBLES.items():
        assert found[tokens].outcome is outcome, (tokens, found[tokens])
        assert reason in found[tokens].reason
    assert found[3].outcome is found[4].outcome is Outcome.COMPLETED


def test_a_good_stream_gives_first_token_gaps_and_usage() -> None:
    def paced(exchange: Exchange, body: dict[str, Any]) -> None:
        loop = asyncio.get_running_loop()
        exchange.start(200, SSE)
        exchange.send(ROLE)
        for index in range(3):
            loop.call_later(0.1 + 0.04 * index, exchange.send, word(index))
        loop.call_later(0.2, exchange.send, FINISH + usage(16, 3) + DONE)
        loop.call_later(0.21, exchange.finish)

    record = asyncio.run(drive(Engine({3: paced}), plans_of(3))).records[0]
    assert record.outcome is Outcome.COMPLETED
    assert (record.prompt_tokens, record.output_tokens, record.usage_known) == (16, 3, True)
    assert record.sent_s is not None
    assert record.first_token_s is not None
    assert record.last_token_s is not None
    assert record.end_s is not None
    # The role delta came at once; the first token is the first content, 100 ms later.
    assert record.first_token_s - record.sent_s >= 0.099
    assert record.gap_count == 2
    assert all(gap >= 30 for gap in record.gaps_ms)
    assert record.sent_s <= record.first_token_s <= record.last_token_s <= record.end_s
    assert record.text_fault == ""


def test_a_whole_answer_has_usage_and_no_first_token() -> None:
    record = asyncio.run(drive(Engine(), plans_of(5, stream=False))).records[0]
    assert (record.outcome, record.output_tokens, record.first_token_s) == (Outcome.COMPLETED, 5, None)
    assert record.text_fault == ""


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([0, 1, 3], "words lost: 3 where 2 was due"),
        ([0, 1, 1, 2], "words repeated: 1 where 2 was due"),
        ([0, 1], "2 words came, usage says 3"),
    ],
)
def test_lost_and_repeated_text_is_found(words: list[int], says: str) -> None:
    engine = Engine({3: stream_of(*(word(index) for index in words), FINISH, usage(7, 3), DONE)})
    record = asyncio.run(drive(engine, plans_of(3))).records[0]
    assert record.text_fault == says


def test_several_words_in_one_chunk_are_no_fault() -> None:
    both = event(choices=[{"index": 0, "delta": {"content": " w1-kelp w2-gull"}}])
    engine = Engine({3: stream_of(word(0), both, FINISH, usage(7, 3), DONE)})
    assert asyncio.run(drive(engine, plans_of(3))).records[0].text_fault == ""


def test_a_server_that_is_not_there_is_unreachable_and_not_a_crash() -> None:
    async def scenario() -> Driver:
        server = HttpServer(Engine())
        port = await server.start("127.0.0.1", 0)
        await server.close()
        target = Target(f"http://127.0.0.1:{port}", "m")
        driver = Driver(target, PromptBook(1, "m"), slo_itl_s=0.05, connections=9, timeout_s=5)
        await driver.run(plans_of(3, 4))
        return driver

    driver = asyncio.run(scenario())
    assert [(r.outcome, r.reason) for r in driver.records] == [(Outcome.ENGINE_UNREACHABLE, "refused")] * 2


def test_a_hanging_stream_ends_as_client_timeout_and_the_server_sees_the_client_go_at_once() -> None:
    gone_by_then: list[int] = []

    def look(exchange: Exchange, body: dict[str, Any]) -> None:
        gone_by_then.append(engine.gone)
        good(exchange, body)

    engine = Engine({3: hang, 4: look})
    plans = [PlannedRequest(0, 0.0, 20, 3), PlannedRequest(1, 0.8, 20, 4)]
    driver = asyncio.run(drive(engine, plans, timeout_s=0.2))
    assert [record.outcome for record in driver.records] == [Outcome.CLIENT_TIMEOUT, Outcome.COMPLETED]
    assert driver.records[0].output_tokens == 1
    assert gone_by_then == [1]


def test_stopping_cancels_what_flies_and_sends_nothing_more() -> None:
    engine = Engine({3: hang})
    plans = [*plans_of(3, 3, 3), PlannedRequest(3, 60.0, 20, 3)]
    driver = asyncio.run(drive(engine, plans, stop_after_s=0.2))
    assert [record.outcome for record in driver.records] == [Outcome.CLIENT_CANCELLED] * 3
    assert driver.sent == 3
    assert engine.gone == 3


def test_the_schedule_does_not_wait_for_a_slow_server() -> None:
    engine = Engine({3: hang})
    driver = asyncio.run(drive(engine, plans_of(*[3] * 20, every_s=0.01), timeout_s=0.5))
    assert len(engine.bodies) == 20
    for record in driver.records:
        assert record.sent_s is not None
        assert record.sent_s >= record.plan.at_s


def test_the_connection_bound_holds_requests_back_and_their_wait_is_the_clients_lag() -> None:
    def slow(exchange: Exchange, body: dict[str, Any]) -> None:
        assert sum(not other.ended for other in engine.open) < 2
        asyncio.get_running_loop().call_later(0.05, good, exchange, body)

    engine = Engine({3: slow})
    driver = asyncio.run(drive(engine, plans_of(*[3] * 6), connections=2))
    assert driver.held_back == 4
    assert [record.outcome for record in driver.records] == [Outcome.COMPLETED] * 6
    lags = [record.sent_s - record.plan.at_s for record in driver.records if record.sent_s is not None]
    assert max(lags) >= 0.09


def test_requests_carry_model_key_limits_and_the_wish_for_usage() -> None:
    engine = Engine()
    asyncio.run(drive(engine, plans_of(3)))
    body = engine.bodies[0]
    assert (body["model"], body["max_tokens"], body["stream"]) == ("m", 3, True)
    assert body["stream_options"] == {"include_usage": True}
    assert engine.heads[0][b"authorization"] == b"Bearer secret"


def job_for(port: int, plans: list[PlannedRequest], warmup: list[PlannedRequest]) -> LoadJob:
    return LoadJob(
        target=Target(f"http://127.0.0.1:{port}/v1", "m"),
        plans=plans,
        marks=[PhaseMark("steady", 0.0, 0.5)],
        warmup=warmup,
        seed=1,
        connections=50,
        slo=SloSpec(),
        label="t",
        emulated=True,
        timeout_s=5,
    )


async def run_job(engine: Engine, plans: list[PlannedRequest], warmup: list[PlannedRequest]) -> Any:
    server = HttpServer(engine)
    port = await server.start("127.0.0.1", 0)
    try:
        return await LoadRun(job_for(port, plans, warmup)).run()
    finally:
        await server.close()


def test_a_whole_run_warms_up_with_other_prompts_and_balances() -> None:
    engine = Engine({11: refuse(429, "queue_full"), 21: stream_of(word(0))})
    run = asyncio.run(run_job(engine, plans_of(3, 11, 21, 4, every_s=0.05), plans_of(*[5] * 10)))
    prompts = [body["messages"][0]["content"] for body in engine.bodies]
    assert len(prompts) == 14
    assert len(set(prompts)) == 14
    accounting = figures_of(run).accounting
    assert accounting.balanced is True
    assert (accounting.completed, accounting.rejected, accounting.errors) == (2, 1, 1)
    assert run.warmup_requests == 10
    assert run.emulated
    assert run.client_lag_p99_s is not None


def test_a_model_that_no_warm_up_request_reaches_is_said_before_the_run() -> None:
    engine = Engine({5: refuse(404, "model_not_found")})
    with pytest.raises(UnavailableError, match=r"unknown_model \(model_not_found, HTTP 404\)"):
        asyncio.run(run_job(engine, plans_of(3), plans_of(5, 5)))


def test_a_target_that_is_not_there_is_said_before_the_run() -> None:
    async def scenario() -> None:
        server = HttpServer(Engine())
        port = await server.start("127.0.0.1", 0)
        await server.close()
        await LoadRun(job_for(port, plans_of(3), [])).run()

    with pytest.raises(UnavailableError, match="nobody answers HTTP"):
        asyncio.run(scenario())


def test_a_stopped_run_is_a_record_marked_interrupted() -> None:
    stopper: list[Callable[[], None]] = []

    def stop_at_first_record(stage: str, driver: Driver, planned: int) -> None:
        if driver.records:
            stopper[0]()

    async def scenario() -> Any:
        server = HttpServer(Engine({3: hang}))
        port = await server.start("127.0.0.1", 0)
        run = LoadRun(job_for(port, [*plans_of(3, 4), PlannedRequest(2, 60.0, 20, 3)], []), stop_at_first_record)
        stopper.append(run.stop)
        try:
            return await run.run()
        finally:
            await server.close()

    record = asyncio.run(scenario())
    assert record.interrupted
    assert {r.outcome for r in record.requests} == {Outcome.CLIENT_CANCELLED, Outcome.COMPLETED}
    assert figures_of(record).accounting.balanced is True
    assert any("interrupted" in note for note in record.notes)
