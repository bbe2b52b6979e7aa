"""The emulation says when the machine, not the model, made its figures."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidegate.twin.emulate.telemetry import Histogram, Pace, token_bounds


def test_pace_is_kept_while_steps_are_late_by_less_than_themselves() -> None:
    pace = Pace()
    for _ in range(1000):
        pace.note(0.004, 0.005)
    assert pace.kept
    assert (pace.late_steps, pace.longest_lag_s) == (0, 0.004)
    for _ in range(11):
        pace.note(0.006, 0.005)
    assert not pace.kept


def test_a_step_finished_early_is_no_lag() -> None:
    pace = Pace()
    pace.note(-0.0004, 0.005)
    assert (pace.lag_s, pace.total_lag_s, pace.late_steps) == (0.0, 0.0, 0)


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(1, 5))))
def test_histograms_count_each_value_under_the_bounds_it_does_not_exceed(values: list[tuple[float, int]]) -> None:
    histogram = Histogram((1.0, 10.0, 50.0))
    for value, times in values:
        histogram.observe(value, times)
    below = 0
    for bound, count in zip(histogram.bounds, histogram.counts, strict=False):
        below += count
        assert below == sum(times for value, times in values if value <= bound)
    assert sum(histogram.counts) == sum(times for _, times in values)


def test_token_buckets_end_within_the_context() -> None:
    assert token_bounds(2048)[-1] == 2000
    assert token_bounds(16384)[:4] == (1, 2, 5, 10)
