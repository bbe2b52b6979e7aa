"""The histogram keeps its stated error, and merging loses nothing."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.traffic.gappool import GapPool, length_class
from tidegate.traffic.histogram import RELATIVE_ERROR, Histogram, bucket_us

DURATIONS = st.lists(st.floats(0, 5000, allow_nan=False), min_size=1, max_size=300)


def exact_percentile(values: list[float], percent: float) -> float:
    ranked = sorted(values)
    return ranked[max(0, math.ceil(round(len(ranked) * percent / 100, 6)) - 1)]


@given(DURATIONS, st.sampled_from([0.1, 1.0, 50.0, 90.0, 99.0, 99.9, 100.0]))
def test_percentile_is_at_most_the_stated_error_above_the_exact_one(values: list[float], percent: float) -> None:
    histogram = Histogram()
    histogram.record_all(values)
    exact, told = exact_percentile(values, percent), histogram.percentile_s(percent)
    assert told is not None
    assert exact - 1e-6 <= told <= exact * (1 + RELATIVE_ERROR) + 1e-6


def test_stated_error_is_within_half_a_percent() -> None:
    worst = max(bucket_us(us / 1e6) / us for us in range(1000, 200_000))
    assert worst <= 1.005


@given(DURATIONS, DURATIONS)
def test_merging_equals_recording_everything_in_one(first: list[float], second: list[float]) -> None:
    one, other, both = Histogram(), Histogram(), Histogram()
    one.record_all(first)
    other.record_all(second)
    both.record_all(first + second)
    one.merge(other.counts)
    assert one.counts == both.counts
    assert one.total == both.total == len(first) + len(second)


@given(st.floats(0, 1e5, allow_nan=False))
def test_a_bucket_is_its_own_bucket(duration_s: float) -> None:
    bound = bucket_us(duration_s)
    assert bucket_us(bound / 1e6) == bound


def test_limits_written_in_whole_milliseconds_are_not_pushed_up_by_binary_fractions() -> None:
    histogram = Histogram()
    histogram.record(0.05)
    assert histogram.share_above(0.05) == 0.0
    histogram.record(0.0502)
    assert histogram.share_above(0.05) == 0.5


def test_nothing_counted_is_unknown_and_not_zero() -> None:
    assert Histogram().percentile_s(99) is None
    assert Histogram().maximum_s() is None
    assert Histogram().share_above(1.0) is None


def test_a_negative_duration_counts_as_zero_and_an_impossible_percentile_is_refused() -> None:
    histogram = Histogram()
    histogram.record(-0.001, times=3)
    assert histogram.percentile_s(50) == 0.0
    assert histogram.total == 3
    with pytest.raises(ValueError, match="101"):
        histogram.percentile_s(101)


@pytest.mark.parametrize(("tokens", "name"), [(511, "short"), (512, "mixed"), (4096, "mixed"), (4097, "long")])
def test_length_classes(tokens: int, name: str) -> None:
    assert length_class(tokens) == name


def test_a_gap_pool_keeps_phases_and_classes_apart_and_pools_them_all() -> None:
    pool = GapPool()
    pool.of("steady", 100).record(0.02)
    pool.of("steady", 100).record(0.03)
    pool.of("pulse", 9000).record(0.5)
    assert set(pool.by_group()) == {"steady/short", "pulse/long"}
    assert Histogram(pool.by_group()["steady/short"]).total == 2
    pooled = Histogram(pool.pooled())
    assert pooled.total == 3
    assert pooled.maximum_s() == pytest.approx(0.5, rel=RELATIVE_ERROR)
