"""A traffic spec becomes one fixed list of requests."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tidegate.errors import BadInputError
from tidegate.spec.traffic import LengthSpec, PhaseSpec, TraceSpec, TrafficSpec
from tidegate.traffic.schedule import plan, plan_warmup, planned_marks

PEAK = TrafficSpec(
    seed=4,
    phases=[
        PhaseSpec(name="steady", duration_s=20, rate=10),
        PhaseSpec(name="pulse", duration_s=4, rate=50),
        PhaseSpec(name="after", duration_s=6, rate=10),
    ],
    stream_share=0.8,
)


def test_the_same_spec_gives_the_same_requests_and_another_seed_gives_others(tmp_path: Path) -> None:
    assert plan(PEAK, tmp_path) == plan(PEAK, tmp_path)
    assert plan(PEAK, tmp_path) != plan(msgspec.structs.replace(PEAK, seed=5), tmp_path)


def test_phases_follow_one_another_and_a_share_is_not_streamed(tmp_path: Path) -> None:
    requests = plan(PEAK, tmp_path)
    assert [r.index for r in requests] == list(range(len(requests)))
    assert {r.phase for r in requests if 20 <= r.at_s < 24} == {"pulse"}
    assert sum(r.stream for r in requests) / len(requests) == pytest.approx(0.8, abs=0.06)
    assert [(m.name, m.start_s, m.end_s) for m in planned_marks(PEAK, requests)] == [
        ("steady", 0, 20), ("pulse", 20, 24), ("after", 24, 30),
    ]  # fmt: skip


def test_warm_up_has_its_own_draws_and_the_runs_lengths() -> None:
    warm = plan_warmup(PEAK)
    assert len(warm) == 100
    measured = plan(PEAK, Path())
    assert [r.prompt_tokens for r in warm] != [r.prompt_tokens for r in measured[:100]]
    assert all(r.prompt_tokens <= PEAK.lengths.long_max_tokens for r in warm)


def test_a_trace_is_replayed_as_it_is_whatever_the_length_spec_says(shared_dir: Path) -> None:
    spec = TrafficSpec(
        trace=TraceSpec(file="azure-2023-code.csv", format="azure", start_s=0, duration_s=60, speed=10),
        lengths=LengthSpec(prompt_max_tokens=512),
    )
    requests = plan(spec, shared_dir / "traces")
    assert [(r.prompt_tokens, r.output_tokens) for r in requests[:3]] == [(4808, 10), (3180, 8), (110, 27)]
    assert requests[1].at_s == pytest.approx(0.0052, abs=1e-6)
    assert requests[-1].at_s < 6.0
    assert planned_marks(spec, requests)[0].end_s == 6.0


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (TrafficSpec(), "neither phases nor a trace"),
        (TrafficSpec(phases=PEAK.phases, trace=TraceSpec(file="x", format="azure")), "both phases and a trace"),
        (TrafficSpec(phases=[PhaseSpec(name="a", duration_s=1, rate=0)]), "no request at all"),
    ],
)
def test_traffic_that_cannot_be_sent_is_refused(spec: TrafficSpec, says: str) -> None:
    with pytest.raises(BadInputError, match=says):
        plan(spec, Path())
