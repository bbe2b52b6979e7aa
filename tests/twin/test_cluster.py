"""A whole cluster in the twin: real traffic ends, all of it is accounted for, the same input gives the same run."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tidegate.errors import BadInputError, Outcome
from tidegate.policy.gate import Decision
from tidegate.spec import ClusterSpec, EngineProfile, InstanceSpec, PoolSpec, TimeoutsSpec, TraceSpec, TrafficSpec
from tidegate.traffic.figures import figures_of
from tidegate.traffic.plan import PlannedRequest
from tidegate.traffic.schedule import plan
from tidegate.twin.cluster import simulate, with_admission
from tidegate.twin.shell import Shell

SMALL_ENGINE = EngineProfile(step_tokens=1024, max_sequences=64, context_tokens=8192)


def cluster(engine: EngineProfile = SMALL_ENGINE, instances: int = 2) -> ClusterSpec:
    urls = [InstanceSpec(url=f"http://127.0.0.1:{8001 + i}") for i in range(instances)]
    return ClusterSpec(pools=[PoolSpec(model="llama", instances=urls, engine=engine)])


def burst(count: int, prompt: int = 600, output: int = 80, every_s: float = 0.02) -> list[PlannedRequest]:
    return [PlannedRequest(i, i * every_s, prompt + 7 * (i % 11), output + 3 * (i % 13)) for i in range(count)]


def test_ten_minutes_of_a_real_trace_end_on_two_instances(shared_dir: Path) -> None:
    trace = TraceSpec(file=str(shared_dir / "traces" / "azure-2023-conv.csv"), format="azure", duration_s=600)
    requests = plan(TrafficSpec(trace=trace), shared_dir)
    run = simulate(cluster(EngineProfile()), requests)
    figures = figures_of(run)
    assert len(run.requests) == len(requests) == run.sent
    assert figures.accounting.balanced
    assert figures.total.outcomes == {"completed": len(requests)}
    assert {record.instance for record in run.requests} == {"127.0.0.1:8001", "127.0.0.1:8002"}
    assert all(record.output_tokens == record.plan.output_tokens for record in run.requests)
    assert sum(i.output_tokens for i in run.instances) == sum(r.output_tokens for r in requests)
    assert sum(run.gaps.values()) == sum(record.gap_count for record in run.requests)


def test_the_same_input_gives_the_same_bytes() -> None:
    first, second = (msgspec.json.encode(simulate(cluster(), burst(300))) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("admission", [True, False])
def test_leaping_changes_no_decision_and_no_record(admission: bool) -> None:
    spec = with_admission(cluster(), admission)
    logs: list[list[Decision]] = []
    records = []
    for leap in (True, False):
        log: list[Decision] = []
        shell = Shell(spec, burst(400, every_s=0.01), log, leap=leap)
        shell.run(-1.0, {5: 0.4, 50: 0.9, 51: 0.5})
        logs.append(log)
        records.append(msgspec.json.encode(shell.records))
    assert logs[0] == logs[1]
    assert records[0] == records[1]


def test_at_overload_admission_keeps_the_promise_to_those_it_lets_in() -> None:
    requests = burst(1500, every_s=0.004)
    kept = figures_of(simulate(cluster(), requests, admission=True)).total
    flooded = figures_of(simulate(cluster(), requests, admission=False)).total
    assert kept.ttft.p99_s is not None
    assert flooded.ttft.p99_s is not None
    assert kept.ttft.p99_s < 2.0 < flooded.ttft.p99_s
    assert kept.outcomes["completed"] < flooded.outcomes["completed"] == len(requests)
    refused = set(kept.outcomes) - {"completed"}
    assert refused <= {"queue_full", "queue_timeout", "overloaded"}


def test_clients_that_leave_are_counted_and_cost_no_more() -> None:
    requests = burst(40)
    run = simulate(cluster(), requests, cancels={3: 0.1, 7: 0.15, 30: 100.0})
    outcomes = {record.plan.index: record.outcome for record in run.requests}
    assert outcomes[3] is outcomes[7] is Outcome.CLIENT_CANCELLED
    assert outcomes[30] is Outcome.COMPLETED
    assert sum(i.output_tokens for i in run.instances) < sum(r.output_tokens for r in requests)


def test_a_prompt_beyond_the_context_is_refused_by_the_engine() -> None:
    requests = [PlannedRequest(0, 0.0, 9000, 10), PlannedRequest(1, 0.0, 100, 10)]
    records = simulate(cluster(), requests).requests
    assert [(r.outcome, r.status) for r in records] == [(Outcome.ENGINE_REFUSED, 400), (Outcome.COMPLETED, 200)]


def test_a_long_stream_is_not_taken_for_a_silent_one() -> None:
    timeouts = TimeoutsSpec(first_token_s=5.0, gap_s=0.5, total_s=1000.0)
    spec = cluster()
    spec = msgspec.structs.replace(spec, gateway=msgspec.structs.replace(spec.gateway, timeouts=timeouts))
    run = simulate(spec, [PlannedRequest(0, 0.0, 100, 2000)])
    assert run.requests[0].outcome is Outcome.COMPLETED
    assert run.requests[0].end_s is not None
    assert run.requests[0].end_s > 5.0


def test_the_gate_sees_the_engines_at_most_one_scrape_late() -> None:
    spec = cluster()
    shell = Shell(spec, burst(200))
    shell.run(until_s=2.0)
    for server in shell.servers:
        assert shell.now - server.ledger.sampled_s <= spec.gateway.scrape_interval_s
        assert server.ledger.sample is not None
        assert server.ledger.sample.running


def test_whole_answers_have_no_first_token_and_no_gaps() -> None:
    run = simulate(cluster(), [PlannedRequest(0, 0.0, 100, 50, stream=False)])
    (record,) = run.requests
    assert (record.first_token_s, record.gap_count, run.gaps) == (None, 0, {})
    assert (record.outcome, record.output_tokens) == (Outcome.COMPLETED, 50)


def test_a_run_that_is_cut_says_what_was_in_flight() -> None:
    run = simulate(cluster(), burst(100), until_s=1.0)
    figures = figures_of(run)
    assert run.in_flight > 0
    assert figures.accounting.balanced


def test_progress_is_told_in_order() -> None:
    seen: list[tuple[float, int, int]] = []
    simulate(cluster(), burst(200), progress=lambda now_s, ended, planned: seen.append((now_s, ended, planned)))
    assert seen == sorted(seen)
    assert seen[-1][2] == 200


@pytest.mark.parametrize(
    ("requests", "words"),
    [
        ([PlannedRequest(0, 2.0, 10, 10), PlannedRequest(1, 1.0, 10, 10)], "request 1 is planned at 1 s, before 2 s"),
        ([PlannedRequest(0, 0.0, 90, 10, prefix_hashes=(1,), prefix_block_tokens=24)], "24 tokens, which KV blocks"),
    ],
)
def test_plans_that_cannot_be_run_are_named(requests: list[PlannedRequest], words: str) -> None:
    with pytest.raises(BadInputError, match=words):
        simulate(cluster(), requests)


def test_shared_prefixes_shorten_the_first_token() -> None:
    hashes = tuple(range(12))
    alike = [PlannedRequest(i, i * 2.0, 6200, 10, prefix_hashes=hashes, prefix_block_tokens=512) for i in range(6)]
    unlike = [msgspec.structs.replace(p, prefix_hashes=()) for p in alike]
    warm = simulate(cluster(instances=1), alike).requests[-1].ttft_s
    cold = simulate(cluster(instances=1), unlike).requests[-1].ttft_s
    assert warm is not None
    assert cold is not None
    assert warm < cold / 4
