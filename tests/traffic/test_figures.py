"""Figures of small runs computed by hand."""

from __future__ import annotations

import pytest

from tidegate.errors import Outcome
from tidegate.testing.runs import record, run_of
from tidegate.traffic.figures import figures_of, meets_slo, phase_marks
from tidegate.traffic.gappool import GapPool
from tidegate.traffic.record import InstanceRecord, PhaseMark, RunRecord


def close(value: float) -> object:
    """Equal within the histogram's stated error."""
    return pytest.approx(value, rel=0.005)


def test_latencies_of_two_requests_by_hand() -> None:
    run = run_of([
        record(0, 1.0, first_s=1.2, lag_s=0.1, gaps_ms=[20, 30, 40]),
        record(1, 2.0, first_s=2.6, gaps_ms=[60], end_s=2.7),
    ])  # fmt: skip
    total = figures_of(run).total
    assert (total.ttft.count, total.ttft.p50_s, total.ttft.p99_s) == (2, close(0.2), close(0.6))
    assert (total.ttft_from_send.p50_s, total.ttft_from_send.p99_s) == (close(0.1), close(0.6))
    assert (total.gap.count, total.gap.p50_s, total.gap.max_s) == (4, close(0.03), close(0.06))
    assert (total.itl.p50_s, total.itl.p99_s) == (close(0.03), close(0.06))
    assert (total.longest_gap.p50_s, total.longest_gap.max_s) == (close(0.04), close(0.06))
    assert (total.tpot.p50_s, total.tpot.max_s) == (close(0.03), close(0.06))
    assert (total.e2e_last_token.p50_s, total.e2e_last_token.max_s) == (close(0.29), close(0.66))
    assert total.e2e_end.max_s == close(0.7)


def test_throughput_counts_what_completed_and_only_the_part_inside_the_window() -> None:
    run = run_of([
        record(0, 0.0, first_s=1.0, gaps_ms=[1000.0] * 9),  # 10 tokens from 1 s to 10 s
        record(1, 5.0, first_s=8.0, gaps_ms=[1000.0] * 4),  # 5 tokens from 8 s to 12 s: half inside
        record(2, 6.0, Outcome.STREAM_BROKEN, first_s=7.0, gaps_ms=[10.0] * 99),
    ])  # fmt: skip
    total = figures_of(run).total
    assert total.output_tokens_per_s == pytest.approx((10 + 2.5) / 10)
    assert total.prompt_tokens_per_s == pytest.approx(2000 / 10)
    assert total.requests_per_s == pytest.approx(1 / 10)


def test_goodput_counts_failures_rejections_and_unfinished_against_it() -> None:
    run = run_of([
        record(0, 1.0, first_s=1.5, gaps_ms=[20, 30]),
        record(1, 1.0, first_s=2.0, gaps_ms=[20, 30]),  # TTFT 1 s
        record(2, 1.0, Outcome.QUEUE_FULL),
        record(3, 1.0, Outcome.TRUNCATED, first_s=1.1, gaps_ms=[20]),
    ])  # fmt: skip
    run.in_flight, run.sent = 1, 5
    total = figures_of(run).total
    assert total.sent == 5
    assert total.goodput_share == pytest.approx(1 / 5)
    assert total.goodput_per_s == pytest.approx(0.1)
    assert total.outcomes == {"completed": 2, "queue_full": 1, "truncated": 1}


@pytest.mark.parametrize(
    ("gaps_ms", "good"),
    [([20.0] * 99 + [51.0], True), ([20.0] * 98 + [51.0, 51.0], False), ([20.0, 51.0], False), ([], True)],
)
def test_one_gap_in_a_hundred_may_be_over_the_slo(gaps_ms: list[float], good: bool) -> None:
    assert meets_slo(record(0, 0.0, first_s=0.5, gaps_ms=gaps_ms), 0.8, 0.05) is good


@pytest.mark.parametrize(("end_s", "good"), [(1.29, True), (1.31, False)])
def test_a_whole_answer_is_due_when_a_stream_within_the_slo_would_have_ended(end_s: float, good: bool) -> None:
    whole = record(0, 0.0, stream=False, output_tokens=11, end_s=end_s)
    assert meets_slo(whole, 0.8, 0.05) is good


def test_a_chunk_of_several_tokens_is_divided_for_itl_and_not_for_the_gap() -> None:
    run = run_of([record(0, 0.0, first_s=0.1, gaps_ms=[80.0] * 9, output_tokens=40)])
    total = figures_of(run).total
    assert total.gap.p50_s == close(0.08)
    assert total.itl.p50_s == close(0.02)


def test_accounting_is_a_checked_value() -> None:
    requests = [
        record(0, 0.0, first_s=0.1),
        record(1, 0.0, Outcome.OVERLOADED),
        record(2, 0.0, Outcome.ENGINE_ERROR),
        record(3, 0.0, Outcome.CLIENT_CANCELLED),
    ]
    run = run_of(requests)
    accounting = figures_of(run).accounting
    assert (accounting.completed, accounting.rejected, accounting.errors, accounting.cancelled) == (1, 1, 1, 1)
    assert accounting.balanced is True
    run.sent = 5
    assert figures_of(run).accounting.balanced is False
    run.in_flight = 1
    assert figures_of(run).accounting.balanced is True
    run.sent = None
    assert figures_of(run).accounting.balanced is None


def test_phases_and_length_classes_are_told_apart() -> None:
    run = run_of([
        record(0, 1.0, first_s=1.1, gaps_ms=[100.0], prompt_tokens=100),
        record(1, 4.0, first_s=4.4, gaps_ms=[100.0], prompt_tokens=5000, phase="pulse"),
        record(2, 7.0, first_s=7.2, gaps_ms=[100.0], prompt_tokens=600),
    ])  # fmt: skip
    run.phases = [PhaseMark("steady", 0, 3), PhaseMark("pulse", 3, 5), PhaseMark("steady", 5, 10)]
    figures = figures_of(run)
    assert figures.phases["steady"].sent == 2
    assert figures.phases["steady"].duration_s == 8
    assert figures.phases["pulse"].ttft.p99_s == close(0.4)
    assert figures.phases["pulse"].output_tokens_per_s == pytest.approx(2 / 2)
    assert {name: part.sent for name, part in figures.classes.items()} == {"short": 1, "mixed": 1, "long": 1}
    assert figures.classes["long"].ttft.p50_s == close(0.4)


def test_phase_marks_fall_back_to_the_requests_own_times() -> None:
    run = run_of([
        record(0, 1.0, phase="a"), record(1, 2.0, phase="a"), record(2, 3.0, phase="b"), record(3, 4.0, phase="a"),
    ])  # fmt: skip
    assert [(m.name, m.start_s, m.end_s) for m in phase_marks(run)] == [("a", 1, 2), ("b", 3, 3), ("a", 4, 4)]


def test_warm_up_and_cool_down_are_outside_the_window_but_inside_the_accounting() -> None:
    run = run_of([record(0, 0.5, first_s=0.6), record(1, 5.0, first_s=5.9), record(2, 9.5)], window_s=(2.0, 8.0))
    figures = figures_of(run)
    assert figures.total.sent == 1
    assert figures.total.ttft.p50_s == close(0.9)
    assert figures.accounting.completed == 3


def twin_run() -> RunRecord:
    """No raw gaps; pooled ones by phase and class."""
    pool = GapPool()
    pool.of("steady", 100).record(0.02, times=99)
    pool.of("steady", 9000).record(0.5)
    run = run_of([record(0, 1.0, first_s=1.1, prompt_tokens=100), record(1, 1.0, first_s=1.2, prompt_tokens=9000)])
    run.gaps, run.gaps_by_group = pool.pooled(), pool.by_group()
    return run


def test_pooled_gaps_serve_runs_without_raw_ones() -> None:
    figures = figures_of(twin_run())
    assert (figures.total.itl.count, figures.total.itl.p50_s, figures.total.itl.max_s) == (100, close(0.02), close(0.5))
    assert figures.classes["short"].itl.max_s == close(0.02)
    assert figures.classes["long"].itl.p50_s == close(0.5)
    assert figures.phases["steady"].itl.count == 100


def test_what_is_not_known_stays_unknown() -> None:
    figures = figures_of(run_of([]))
    assert figures.total.goodput_share is None
    assert figures.total.ttft.p99_s is None
    assert figures.exits_per_instance_hour is None
    assert figures.crash_failed_share is None
    assert figures.preemptions is None
    assert figures.mfu is None
    assert figures.kv_peak_fraction is None
    assert figures.cost_per_m_output is None


def test_fleet_figures_by_hand() -> None:
    run = run_of([
        record(0, 1.0, first_s=1.1, gaps_ms=[100.0] * 9, prompt_tokens=1000),
        record(1, 1.0, Outcome.STREAM_BROKEN, first_s=1.1),
    ])  # fmt: skip
    run.instances = [
        InstanceRecord(
            name="a", gpus=8, preemptions=3, exits_unasked=1, model_flops=2e15, peak_flops_per_s=1e15,
            kv_peak_fraction=0.5,
        ),
        InstanceRecord(
            name="b", gpus=8, preemptions=4, model_flops=4e15, peak_flops_per_s=1e15, kv_peak_fraction=0.9
        ),
    ]  # fmt: skip
    run.gpu_hour_price = 2.5
    figures = figures_of(run)
    assert figures.exits_per_instance_hour == pytest.approx(1 / (20 / 3600))
    assert figures.crash_failed_share == 0.5
    assert figures.preemptions == 7
    assert figures.mfu == pytest.approx(6e15 / (2 * 1e15 * 10))
    assert figures.kv_peak_fraction == 0.9
    gpu_cost = 16 * 2.5 * 10 / 3600
    assert figures.cost_per_m_output == pytest.approx(gpu_cost * 0.75 / (10 / 1e6))
    assert figures.cost_per_m_prompt == pytest.approx(gpu_cost * 0.25 / (1000 / 1e6))


def test_one_unknown_preemption_count_makes_the_sum_unknown() -> None:
    run = run_of([record(0, 1.0, first_s=1.1)])
    run.instances = [InstanceRecord(name="a", preemptions=3), InstanceRecord(name="b")]
    assert figures_of(run).preemptions is None
    assert figures_of(run).crash_failed_share == 0.0


def test_counters_that_cover_more_than_the_window_are_divided_by_what_they_cover() -> None:
    run = run_of([record(0, 1.0, first_s=1.1)])
    run.instances = [InstanceRecord(name="a", model_flops=2e16, peak_flops_per_s=1e15, observed_s=40.0)]
    assert figures_of(run).mfu == pytest.approx(0.5)
