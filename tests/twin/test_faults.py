"""Engines that die, come back or slow down, and several gateways before the same engines."""

from __future__ import annotations

import msgspec
import pytest

from tidegate.errors import BadInputError, Outcome
from tidegate.spec import ClusterSpec, EngineProfile, InstanceSpec, PoolSpec
from tidegate.traffic.figures import figures_of
from tidegate.traffic.plan import PlannedRequest
from tidegate.traffic.record import RunRecord
from tidegate.twin.cluster import simulate
from tidegate.twin.faults import parse_fault
from tidegate.twin.shell import Shell

ENGINE = EngineProfile(step_tokens=1024, max_sequences=64, context_tokens=8192)


def cluster(instances: int = 3, kind: str = "vllm") -> ClusterSpec:
    urls = [InstanceSpec(url=f"http://127.0.0.1:{8001 + i}") for i in range(instances)]
    engine = msgspec.structs.replace(ENGINE, kind=kind)
    return ClusterSpec(pools=[PoolSpec(model="llama", instances=urls, engine=engine)])


def even(count: int, every_s: float = 0.1, output: int = 150) -> list[PlannedRequest]:
    return [PlannedRequest(i, i * every_s, 500 + 7 * (i % 11), output) for i in range(count)]


def faulty(*faults: str, count: int = 200, kind: str = "vllm") -> RunRecord:
    return simulate(cluster(kind=kind), even(count), faults=[parse_fault(text) for text in faults])


def served_between(run: RunRecord, name: str, start_s: float, end_s: float) -> int:
    return sum(r.instance == name and start_s <= (r.first_token_s or -1.0) < end_s for r in run.requests)


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_a_death_breaks_open_streams_and_nothing_goes_there_again(kind: str) -> None:
    run = faulty("die@5s:1", kind=kind)
    figures = figures_of(run)
    assert figures.accounting.balanced
    broken = [r for r in run.requests if r.outcome is Outcome.STREAM_BROKEN]
    assert 0 < len(broken) < 30
    assert {r.instance for r in broken} == {"127.0.0.1:8002"}
    assert {r.end_s for r in broken} == {5.0}
    assert all(0 < r.output_tokens < r.plan.output_tokens for r in broken)
    assert served_between(run, "127.0.0.1:8002", 0.0, 5.0) > 5
    assert served_between(run, "127.0.0.1:8002", 5.0, 99.0) == 0
    assert [i.exits_unasked for i in run.instances] == [0, 1, 0]


def test_who_waited_for_a_first_token_is_tried_elsewhere() -> None:
    plans = [PlannedRequest(0, 1.0, 4000, 20)]
    spec = cluster(2)
    first = simulate(spec, plans).requests[0]
    assert first.first_token_s is not None
    number = int(first.instance[-1]) - 1
    at_s = (1.0 + first.first_token_s) / 2
    (record,) = simulate(spec, plans, faults=[parse_fault(f"die@{at_s:.4f}s:{number}")]).requests
    assert record.outcome is Outcome.COMPLETED
    assert record.instance != first.instance


def test_a_restart_serves_again_after_its_cold_start() -> None:
    run = faulty("restart@5s:0:6s")
    assert served_between(run, "127.0.0.1:8001", 5.0, 11.0) == 0
    assert served_between(run, "127.0.0.1:8001", 11.0, 99.0) > 5
    assert run.instances[0].exits_unasked == 1
    assert sum(i.output_tokens for i in run.instances) >= sum(r.output_tokens for r in run.requests)


def test_a_slow_spell_shows_while_it_lasts_and_not_after() -> None:
    slow = simulate(cluster(1), even(60, every_s=0.5), faults=[parse_fault("slow@10s:0:3:10s")])
    plain = simulate(cluster(1), even(60, every_s=0.5))

    def tpot_s(run: RunRecord, index: int) -> float:
        record = run.requests[index]
        assert record.end_s is not None
        assert record.first_token_s is not None
        return (record.end_s - record.first_token_s) / (record.output_tokens - 1)

    assert tpot_s(slow, 5) == tpot_s(plain, 5)
    assert tpot_s(slow, 28) > 2.0 * tpot_s(plain, 28)
    assert tpot_s(slow, 58) < 1.2 * tpot_s(plain, 58)


def test_gaps_of_broken_streams_are_counted_once() -> None:
    run = faulty("die@5s:1", "restart@9s:0:3s")
    assert sum(run.gaps.values()) == sum(record.gap_count for record in run.requests)


def test_with_every_engine_dead_requests_are_told_so() -> None:
    run = simulate(cluster(1), even(50), faults=[parse_fault("die@2s:0")])
    late = [r for r in run.requests if r.plan.at_s > 3.0]
    assert {r.outcome for r in late} == {Outcome.NO_INSTANCE}


@pytest.mark.parametrize("gateways", [1, 2, 5])
def test_several_gateways_lose_nothing_and_serve_alike(gateways: int) -> None:
    run = simulate(cluster(), even(300, every_s=0.03), gateways=gateways)
    figures = figures_of(run)
    assert figures.accounting.balanced
    assert len(run.requests) == 300
    assert sum(run.gaps.values()) == sum(record.gap_count for record in run.requests)


def test_each_gateway_sees_the_others_work_in_what_it_scrapes() -> None:
    shell = Shell(cluster(1), even(60, every_s=0.02, output=2000), gateways=2)
    shell.run(until_s=4.0)
    views = shell.servers[0].ledgers
    assert [view.in_flight for view in views] == [30, 30]
    assert all(view.other_blocks > 0 for view in views)


def test_one_gateway_of_one_is_a_gateway() -> None:
    assert simulate(cluster(), even(80), gateways=1) == simulate(cluster(), even(80))


@pytest.mark.parametrize(
    "text", ["die@5s", "die5s:1", "explode@5s:1", "die@5:1", "restart@5s:1", "slow@5s:1:0:9s", "die@5s:-1", "die@5s:x"]
)
def test_what_is_no_fault_is_named(text: str) -> None:
    with pytest.raises(BadInputError, match=r"fault|names no instance"):
        parse_fault(text)


def test_a_fault_of_nobody_is_refused() -> None:
    with pytest.raises(BadInputError, match="hits instance 7, and there are 3"):
        faulty("die@5s:7")
