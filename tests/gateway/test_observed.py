"""What an operator sees of the gateway: probes, metrics, log lines, the way it ends."""

from __future__ import annotations

import gc
import io
import json
import logging
import signal
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from tidegate.cli import run
from tidegate.clock import ManualClock
from tidegate.errors import ExitCode, Outcome
from tidegate.gateway.export import GatewayCollector, health
from tidegate.gateway.prober import PATIENCE_S, Prober
from tidegate.gateway.shell import Gateway
from tidegate.observe.accesslog import AccessLog
from tidegate.observe.buckets import BOUNDS_S, Buckets
from tidegate.testing.house import House, post, spec_of
from tidegate.testing.live import free_port, wait_until
from tidegate.testing.memory_transport import EngineRequest, MemoryClient
from tidegate.testing.processes import Tidegate

ANSWER = b'{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2}}'
PAGE = b'vllm:num_requests_running{engine="0"} 3.0\nvllm:kv_cache_usage_perc{engine="0"} 0.5\n'


def metrics(house: House) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(GatewayCollector(house.gateway))
    lines = [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def prober_of(house: House) -> Prober:
    return Prober(next(iter(house.gateway.upstreams.values())), house.gateway, house.clock.now)


def look(house: House, prober: Prober) -> EngineRequest:
    prober.round()
    house.wire.pump()
    return house.asked[-1]


def test_a_healthy_engine_is_scraped_over_one_connection(house: House) -> None:
    prober = prober_of(house)
    for _ in range(3):
        look(house, prober).answer(b"")
        house.wire.pump()
        assert house.asked[-1].target == "/metrics"
        house.asked[-1].answer(PAGE, headers=b"content-type: text/plain\r\n")
        house.wire.pump()
    assert house.network.dialled == 1
    seen = metrics(house)
    assert seen['tidegate_instance_engine_running{instance="e1",model="m"}'] == 3.0
    assert seen['tidegate_instance_kv_used_ratio{instance="e1",model="m"}'] == 0.5
    assert 'tidegate_instance_engine_waiting{instance="e1",model="m"}' not in seen, "absent is unknown, not 0"
    assert 'tidegate_instance_engine_running{instance="e2",model="m"}' not in seen


def test_refused_is_dead_and_said_in_one_line(house: House, caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("tidegate").propagate = True
    house.network.stop_listening("engine", 1)
    prober = prober_of(house)
    with caplog.at_level(logging.INFO, logger="tidegate"):
        for _ in range(3):
            prober.round()
            house.wire.pump()
    assert [r.getMessage() for r in caplog.records] == [
        "instance e1 (http://engine:1): ejected, was ready; nothing listens there"
    ]
    house.network.listen("engine", 1, house.asked.append)
    look(house, prober).answer(b"")
    house.wire.pump()
    assert health(house.gateway)[0] == 200


@pytest.mark.parametrize("how", ["503", "silence", "reset"])
def test_busy_is_not_dead(house: House, how: str) -> None:
    prober = prober_of(house)
    engine = look(house, prober)
    if how == "503":
        engine.answer(b"", status=503)
    elif how == "reset":
        engine.cut()
    house.wire.pump()
    house.wait(PATIENCE_S + 1)
    again = look(house, prober)
    assert again is not engine
    assert all(instance.ready for instance in house.gateway.gate.instances)


def test_requests_are_counted_by_outcome_and_clients_cannot_grow_the_labels(house: House) -> None:
    house.ask()
    house.asked[0].answer(ANSWER)
    house.wire.pump()
    before = len(metrics(house))
    client = house.client()
    for number in range(200):
        client.send(post(b'{"model":"made-up-%d","messages":[{}]}' % number))
        house.wire.pump()
    seen = metrics(house)
    assert len(seen) == before
    assert seen['tidegate_requests_total{model="m",outcome="completed"}'] == 1
    assert seen['tidegate_requests_total{model="other",outcome="unknown_model"}'] == 200
    assert seen['tidegate_tokens_total{kind="output",model="m"}'] == 2
    assert house.ended(Outcome.UNKNOWN_MODEL) == 200


def test_health_says_what_is_missing() -> None:
    house = House(spec_of(instances=1))
    assert health(house.gateway)[0] == 200
    house.gateway.probed(house.gateway.gate.instances[0], False)
    status, document = health(house.gateway)
    assert (status, document["status"]) == (503, "no_instance")
    house.gateway.drain()
    assert health(house.gateway)[1]["status"] == "draining"


@pytest.mark.parametrize("as_json", [False, True])
def test_a_request_leaves_one_line_without_its_prompt_or_key(as_json: bool) -> None:
    house = House()
    out = io.StringIO()
    house.gateway.access_log = AccessLog(out, as_json, wall=lambda: 1.5)
    house.ask(headers=b"authorization: Bearer secret\r\nx-request-id: abc\r\n")
    house.asked[0].answer(ANSWER)
    house.wire.pump()
    assert out.getvalue() == ""
    house.gateway.access_log.flush()
    (line,) = out.getvalue().splitlines()
    assert "abc" in line
    assert "hello" not in line
    assert "secret" not in line
    if as_json:
        told = json.loads(line)
        assert told["outcome"] == "completed"
        assert (told["prompt_tokens"], told["output_tokens"], told["status"]) == (7, 2, 200)
        assert told["ttft_s"] is not None


def test_a_log_that_cannot_be_written_costs_lines_and_nothing_else() -> None:
    house = House()
    out = io.StringIO()
    house.gateway.access_log = AccessLog(out, False)
    out.close()
    client = house.ask()
    house.asked[0].answer(ANSWER)
    house.wire.pump()
    house.gateway.access_log.flush()
    assert house.gateway.access_log.dropped == 1
    assert client.received.startswith(b"HTTP/1.1 200 ")


def test_a_request_leaves_no_work_for_the_garbage_collector(house: House) -> None:
    clients = [house.client() for _ in range(20)]

    def serve(client: MemoryClient) -> None:
        house.ask(b',"stream":true', client=client)
        engine = house.asked[-1]
        engine.start_stream()
        engine.piece(b'data: {"choices":[{"delta":{"content":"x"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n')
        engine.finish()
        house.wire.pump()
        house.ask(client=client)
        house.asked[-1].answer(ANSWER)
        house.wire.pump()
        house.asked.clear()

    serve(clients[0])
    gc.collect()
    gc.disable()
    try:
        for client in clients:
            serve(client)
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_buckets_hold_everything_that_was_added() -> None:
    buckets = Buckets()
    for value in (0.0, 0.001, 0.0011, 5.0, 1e9):
        buckets.add(value)
    buckets.add_zeros(2)
    cumulative = buckets.cumulative()
    assert cumulative[0] == (f"{BOUNDS_S[0]:g}", 4)
    assert cumulative[-1] == ("+Inf", buckets.count) == ("+Inf", 7)
    assert [count for _, count in cumulative] == sorted(count for _, count in cumulative)


def test_an_address_that_is_none_is_said_in_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "tidegate.yaml"
    config.write_text("version: 1\npools:\n  - model: m\n    instances:\n      - url: http://127.0.0.1:1\n")
    assert run(["gateway", "-c", str(config), "--listen", "nowhere"]) == ExitCode.BAD_INPUT
    assert "--listen 'nowhere' is not HOST:PORT" in capsys.readouterr().err
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_a_second_signal_ends_a_drain_at_once(tmp_path: Path, emulated_pair_config: Path) -> None:
    process = Tidegate(["gateway", "-c", str(emulated_pair_config)], tmp_path / "log")
    with process:
        wait_until("ready", lambda: "ready:" in process.output())
        process.signal(signal.SIGTERM)
        process.signal(signal.SIGTERM)
        assert process.wait_exit() in (ExitCode.OK, ExitCode.INTERRUPTED)


@pytest.fixture
def emulated_pair_config(tmp_path: Path) -> Path:
    config = tmp_path / "two.yaml"
    config.write_text(
        "version: 1\npools:\n  - model: m\n    instances:\n      - url: http://127.0.0.1:1\n"
        f"gateway:\n  listen: 127.0.0.1:{free_port()}\n  admin: 127.0.0.1:{free_port()}\n"
    )
    return config


def test_a_gateway_is_built_without_an_event_loop() -> None:
    assert Gateway(spec_of(), ManualClock()).gate.models() == ["m"]


def test_what_never_happened_is_a_dash_in_the_plain_log() -> None:
    house, out = House(), io.StringIO()
    house.gateway.access_log = AccessLog(out, False)
    for instance in house.gateway.gate.instances:
        house.gateway.probed(instance, False)
    house.ask()
    house.gateway.access_log.flush()
    assert "no_instance" in out.getvalue()
    assert "ttft=- queued=- tokens=-+-" in out.getvalue()
    assert "-1" not in out.getvalue().split("attempts=")[0].split(" 503 ")[1]
