"""The sweep finds settings that keep the SLO, and says of every other why it lost."""

from __future__ import annotations

import pytest

from tidegate.errors import BadInputError
from tidegate.spec import ClusterSpec, EngineProfile, InstanceSpec, PoolSpec, SloSpec
from tidegate.traffic.figures import figures_of
from tidegate.traffic.plan import PlannedRequest
from tidegate.tune.sweep import Trial, sweep
from tidegate.twin.cluster import simulate


def cluster(slo: SloSpec | None = None) -> ClusterSpec:
    urls = [InstanceSpec(url=f"http://127.0.0.1:{8001 + i}") for i in range(2)]
    pool = PoolSpec(model="llama", instances=urls, engine=EngineProfile())
    return ClusterSpec(pools=[pool], slo=slo or SloSpec())


def flood() -> list[PlannedRequest]:
    """Twenty a second for ten seconds, every fifth prompt very long."""
    return [PlannedRequest(i, i * 0.05, 5000 if i % 5 == 0 else 500, 150) for i in range(200)]


def test_the_default_step_budget_loses_on_gaps_and_a_smaller_one_wins() -> None:
    trials = sweep(cluster(), flood(), (1024, 8192), (128, 256), (8192,))
    winner = trials[0]
    assert winner.feasible
    assert winner.lost_because == ""
    assert winner.candidate.step_tokens == 1024
    losers = [trial for trial in trials if trial.candidate.step_tokens == 8192]
    assert losers
    assert all("P99 ITL" in trial.lost_because and "is above 50 ms" in trial.lost_because for trial in losers)
    assert all(trial.lost_because for trial in trials[1:])


def test_the_winners_settings_give_what_was_promised() -> None:
    winner = sweep(cluster(), flood(), (768, 1024), (128,))[0]
    again = figures_of(simulate(winner.candidate.applied(cluster()), flood(), admission=True)).total
    assert winner.figures == again


def test_where_nothing_keeps_the_slo_the_nearest_comes_first_and_does_not_win() -> None:
    trials = sweep(cluster(SloSpec(ttft_s=0.01, itl_s=0.05)), flood(), (1024, 8192), (128,))
    assert not trials[0].feasible
    assert [trial.excess for trial in trials] == sorted(trial.excess for trial in trials)
    assert all("P99 TTFT" in trial.lost_because for trial in trials)


def test_settings_that_no_engine_starts_with_lose_for_that() -> None:
    trials = sweep(cluster(), flood(), (64, 1024), (128,))
    assert isinstance(trials[-1], Trial)
    assert trials[-1].candidate.step_tokens == 64
    assert "would not start" in trials[-1].lost_because
    with pytest.raises(BadInputError, match="no candidate can start"):
        sweep(cluster(), flood(), (64,), (128,))


def test_progress_counts_to_the_end() -> None:
    seen: list[tuple[int, int]] = []
    sweep(cluster(), flood()[:20], (768, 1024), (64, 128), progress=lambda done, of, _: seen.append((done, of)))
    assert seen == [(0, 4), (1, 4), (2, 4), (3, 4), (4, 4)]
