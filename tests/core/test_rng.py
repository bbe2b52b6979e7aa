"""Named streams: repeatable, independent of each other, and distributed as they say."""

from __future__ import annotations

import statistics
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.rng import Stream, Streams

GOLDEN = [0.807981385182, 729, 0.98573621783]
"""Drawn once; recorded runs can only be repeated while these stand."""


def draws(stream: Stream, count: int = 20) -> list[float]:
    return [stream.uniform() for _ in range(count)]


def test_same_seed_and_name_give_the_same_draws() -> None:
    assert draws(Stream(7, "arrivals")) == draws(Stream(7, "arrivals"))


def test_other_seed_or_name_gives_other_draws() -> None:
    first = draws(Stream(7, "arrivals"))
    assert first != draws(Stream(8, "arrivals"))
    assert first != draws(Stream(7, "lengths"))


def test_draws_are_the_same_on_every_machine_and_version() -> None:
    stream = Stream(1, "arrivals")
    assert [round(stream.uniform(), 12), stream.integer(1, 1000), round(stream.exponential(2.0), 12)] == GOLDEN


def test_a_new_consumer_shifts_nobody() -> None:
    alone, shared = Streams(3), Streams(3)
    expected = draws(alone.stream("arrivals"), 40)
    before = draws(shared.stream("arrivals"), 20)
    draws(shared.stream("lengths"), 7)
    assert before + draws(shared.stream("arrivals"), 20) == expected


def test_asking_twice_continues_the_stream() -> None:
    streams = Streams(3)
    assert streams.stream("a") is streams.stream("a")


@given(st.integers(), st.integers(-1000, 1000), st.integers(0, 1000))
def test_integers_stay_inside_both_ends(seed: int, low: int, width: int) -> None:
    stream = Stream(seed, "x")
    assert all(low <= stream.integer(low, low + width) <= low + width for _ in range(20))


def test_integers_reach_both_ends_evenly() -> None:
    stream = Stream(1, "x")
    counts = Counter(stream.integer(1, 4) for _ in range(4000))
    assert set(counts) == {1, 2, 3, 4}
    assert max(counts.values()) < 1.2 * min(counts.values())


def test_empty_range_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no whole number lies in \[5, 3\]"):
        Stream(1, "x").integer(5, 3)


def test_means_are_those_asked_for() -> None:
    stream = Stream(1, "x")
    assert statistics.fmean(stream.exponential(4.0) for _ in range(20_000)) == pytest.approx(0.25, rel=0.05)
    assert statistics.fmean(stream.gamma(0.5, 3.0) for _ in range(20_000)) == pytest.approx(1.5, rel=0.05)
    assert statistics.fmean(stream.uniform(2, 4) for _ in range(20_000)) == pytest.approx(3, rel=0.05)
    assert statistics.median(stream.lognormal(1.0, 0.5) for _ in range(20_000)) == pytest.approx(2.718, rel=0.05)
    assert sum(stream.chance(0.3) for _ in range(20_000)) == pytest.approx(6000, rel=0.05)


def test_weights_are_kept_and_zero_is_never_drawn() -> None:
    stream = Stream(1, "x")
    counts = Counter(stream.weighted([0.0, 3.0, 1.0, 0.0]) for _ in range(8000))
    assert set(counts) == {1, 2}
    assert counts[1] / counts[2] == pytest.approx(3, rel=0.1)


@given(st.integers(), st.lists(st.floats(0, 1e300), min_size=1, max_size=8).filter(any))
def test_weighted_draw_has_a_weight(seed: int, weights: list[float]) -> None:
    assert weights[Stream(seed, "x").weighted(weights)] > 0


@pytest.mark.parametrize("weights", [[], [0.0], [0.0, 0.0]])
def test_nothing_to_draw_is_refused(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="no weight is positive"):
        Stream(1, "x").weighted(weights)
