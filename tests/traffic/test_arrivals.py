"""Arrivals hold their rate, their burstiness and their phases, and depend on the seed alone."""

from __future__ import annotations

import itertools
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import BadInputError
from tidegate.rng import Streams
from tidegate.spec.traffic import PhaseSpec
from tidegate.traffic.arrivals import marks_of, phase_offsets, pulsed, send_times

PHASES = st.lists(
    st.builds(
        PhaseSpec,
        name=st.sampled_from(["steady", "pulse", "calm"]),
        duration_s=st.floats(0.1, 20),
        rate=st.floats(0, 30),
        arrivals=st.sampled_from(["poisson", "constant", "gamma"]),
        burstiness=st.floats(0.3, 4),
    ),
    max_size=4,
)


def one(arrivals: str, rate: float, duration_s: float, burstiness: float = 1.0) -> list[float]:
    phase = PhaseSpec(
        name="p",
        duration_s=duration_s,
        rate=rate,
        arrivals=arrivals,  # type: ignore[arg-type]
        burstiness=burstiness,
    )
    return phase_offsets(phase, Streams(7).stream("t"))


@given(PHASES, st.integers(0, 2**32))
def test_schedules_ascend_stay_in_their_phase_and_repeat_for_a_seed(phases: list[PhaseSpec], seed: int) -> None:
    times = send_times(phases, Streams(seed))
    assert times == send_times(phases, Streams(seed))
    assert [at for at, _ in times] == sorted(at for at, _ in times)
    marks = marks_of(phases)
    for at_s, name in times:
        assert any(m.name == name and m.start_s <= at_s < m.end_s + 1e-9 for m in marks)


def test_constant_arrivals_do_not_drift_over_a_day() -> None:
    times = one("constant", 3.0, 86_400)
    assert len(times) == 3 * 86_400
    assert times[-1] == pytest.approx(86_400 - 1 / 3, abs=1e-9)


def test_a_constant_phase_that_ends_between_two_sends_has_every_send_before_its_end() -> None:
    assert one("constant", 2.0, 1.2) == [0.0, 0.5, 1.0]


@pytest.mark.parametrize(
    ("arrivals", "burstiness", "wanted_cv"),
    [("poisson", 1.0, 1.0), ("gamma", 3.0, 3.0), ("gamma", 0.5, 0.5), ("constant", 1.0, 0.0)],
)
def test_rate_and_burstiness_are_those_asked_for(arrivals: str, burstiness: float, wanted_cv: float) -> None:
    times = one(arrivals, 20.0, 2000.0, burstiness)
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert len(times) == pytest.approx(40_000, rel=0.04)
    assert statistics.pstdev(gaps) / statistics.fmean(gaps) == pytest.approx(wanted_cv, abs=0.06 * (1 + wanted_cv))


def test_changing_one_phase_leaves_the_others_arrivals_alone() -> None:
    def phases(rate: float) -> list[PhaseSpec]:
        return [
            PhaseSpec(name="calm", duration_s=10, rate=rate),
            PhaseSpec(name="steady", duration_s=10, rate=5),
        ]

    slow, fast = send_times(phases(1), Streams(3)), send_times(phases(9), Streams(3))
    assert [t for t in slow if t[1] == "steady"] == [t for t in fast if t[1] == "steady"]
    assert len(slow) < len(fast)


def test_pulses_come_back_and_keep_the_total_duration() -> None:
    base = PhaseSpec(name="steady", duration_s=60, rate=10, arrivals="gamma", burstiness=2.0)
    phases = pulsed(base, factor=5, pulse_s=5, first_at_s=10, every_s=20)
    assert [(p.name, p.duration_s, p.rate) for p in phases] == [
        ("steady", 10, 10), ("pulse", 5, 50), ("steady", 15, 10), ("pulse", 5, 50), ("steady", 15, 10),
        ("pulse", 5, 50), ("steady", 5, 10),
    ]  # fmt: skip
    assert {(p.arrivals, p.burstiness) for p in phases} == {("gamma", 2.0)}


@pytest.mark.parametrize(("pulse_s", "first_s", "every_s"), [(10, 55, None), (0, 5, None), (5, 5, 5), (5, 5, 3)])
def test_impossible_pulses_are_refused_in_one_sentence(pulse_s: float, first_s: float, every_s: float) -> None:
    base = PhaseSpec(name="steady", duration_s=60, rate=10)
    with pytest.raises(BadInputError, match="pulse") as caught:
        pulsed(base, 5, pulse_s, first_s, every_s)
    assert caught.value.hint


@pytest.mark.parametrize("arrivals", ["poisson", "constant", "gamma"])
@pytest.mark.parametrize("rate", [0.0, 5e-324, 1e-300])
def test_a_rate_as_good_as_zero_sends_nothing(arrivals: str, rate: float) -> None:
    assert one(arrivals, rate, 10.0, burstiness=2.0 if arrivals == "gamma" else 1.0) == []
