"""What makes a twelve-hour flood fit: requests drawn on the way, counts, no garbage, windows beside a serial run."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from tidegate.errors import BadInputError
from tidegate.spec import ClusterSpec, EngineProfile, InstanceSpec, LengthSpec, PhaseSpec, PoolSpec, TrafficSpec
from tidegate.traffic.arrivals import pulsed
from tidegate.traffic.figures import figures_of
from tidegate.traffic.plan import PlannedRequest
from tidegate.traffic.schedule import plan, planned_marks
from tidegate.twin.cluster import simulate
from tidegate.twin.flight import Flight
from tidegate.twin.shell import Shell
from tidegate.twin.source import DrawnSource
from tidegate.twin.tally import Tally

PULSED = pulsed(PhaseSpec(name="steady", duration_s=60.0, rate=15.0), 5.0, 8.0, 20.0)


def spec_of(traffic: TrafficSpec) -> ClusterSpec:
    urls = [InstanceSpec(url=f"http://127.0.0.1:{8001 + i}") for i in range(3)]
    engine = EngineProfile(step_tokens=768, max_sequences=128)
    return ClusterSpec(pools=[PoolSpec(model="llama", instances=urls, engine=engine)], traffic=traffic)


def drawn(source: DrawnSource) -> list[PlannedRequest]:
    found: list[PlannedRequest] = []
    while (flight := source.next_flight()) is not None:
        found.append(flight.plan())
    return found


@pytest.mark.parametrize(
    "traffic",
    [
        TrafficSpec(phases=PULSED, stream_share=0.8),
        TrafficSpec(phases=[PhaseSpec(name="a", duration_s=9, rate=7, arrivals="gamma", burstiness=3.0)], seed=4),
        TrafficSpec(
            phases=[
                PhaseSpec(name="even", duration_s=3, rate=7, arrivals="constant"),
                PhaseSpec(name="pause", duration_s=2, rate=0),
                PhaseSpec(name="late", duration_s=3, rate=9),
            ],
            lengths=LengthSpec(distribution="uniform"),
        ),
    ],
)
def test_requests_drawn_on_the_way_are_those_planned_beforehand(traffic: TrafficSpec) -> None:
    assert drawn(DrawnSource(traffic)) == plan(traffic, Path())


def test_a_source_that_skips_yields_what_would_have_come() -> None:
    traffic = TrafficSpec(phases=PULSED)
    source = DrawnSource(traffic)
    source.skip_to(21.5)
    assert drawn(source) == [p for p in plan(traffic, Path()) if p.at_s >= 21.5]


def test_a_trace_is_not_drawn() -> None:
    with pytest.raises(BadInputError, match="only phases"):
        DrawnSource(TrafficSpec())


def counted(spec: ClusterSpec, start_s: float = 0.0, end_s: float = 1e300, overlap_s: float = 30.0) -> Tally:
    tally = Tally(spec.slo.ttft_s, spec.slo.itl_s, start_s, end_s)
    source = DrawnSource(spec.traffic)
    from_s = max(0.0, start_s - overlap_s)
    source.skip_to(from_s)
    shell = Shell(spec, [], source=source, recorder=tally)
    shell.run(min(end_s + overlap_s, 1e6), start_s=from_s)
    return tally


def test_counts_say_what_records_say() -> None:
    spec = spec_of(TrafficSpec(phases=PULSED))
    plans = plan(spec.traffic, Path())
    figures = figures_of(simulate(spec, plans, marks=planned_marks(spec.traffic, plans)))
    tally = counted(spec)
    for cell, told in ((tally.whole(), figures.total), (tally.phase("pulse"), figures.phases["pulse"])):
        assert cell.sent == told.sent
        assert cell.outcomes() == told.outcomes
        assert cell.goodput_share() == told.goodput_share
        assert cell.ttft_s(99) == told.ttft.p99_s
        assert cell.e2e_s(50) == told.e2e_end.p50_s
    assert len(tally.whole().outcomes()) > 1


def test_windows_tell_what_a_serial_run_tells() -> None:
    spec = spec_of(TrafficSpec(phases=pulsed(PhaseSpec(name="steady", duration_s=240.0, rate=15.0), 5.0, 8.0, 30, 120)))
    serial = counted(spec)
    joined = counted(spec, 0.0, 110.0)
    joined.merge(counted(spec, 110.0))
    one, two = serial.whole(), joined.whole()
    assert two.sent == one.sent
    assert sum(joined.sent_by_slice) == sum(serial.sent_by_slice)
    assert two.goodput_share() == pytest.approx(one.goodput_share(), abs=0.01)
    assert two.ttft_s(99) == pytest.approx(one.ttft_s(99), rel=0.05)


def test_the_recovery_after_a_pulse_is_told() -> None:
    tally = counted(spec_of(TrafficSpec(phases=PULSED)))
    recovery_s = tally.recovery_s(28.0)
    assert recovery_s is not None
    assert 0.0 <= recovery_s <= 20.0
    assert counted(spec_of(TrafficSpec(phases=PULSED[:2]))).recovery_s(28.0) is None


def test_an_ended_request_leaves_nothing_for_the_collector() -> None:
    """Else memory grows with the run: a flood is played with the collector off."""
    spec = spec_of(TrafficSpec(phases=PULSED))
    gc.collect()
    gc.disable()
    try:
        counted(spec)
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        left = [thing for thing in gc.garbage if isinstance(thing, Flight)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert len(left) < 50
