"""The search: keeps its limits, tries nothing twice, goes on after an interruption, finds what a grid finds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.errors import BadInputError
from tidegate.spec import ClusterSpec, EngineProfile, InstanceSpec, PhaseSpec, PoolSpec, SloSpec, TrafficSpec
from tidegate.spec.lock import Results
from tidegate.traffic.schedule import plan
from tidegate.tune.explain import bound_of, explanation, idle_ttft_s, impossible
from tidegate.tune.outcome import front
from tidegate.tune.search import Found, Limits, Search
from tidegate.tune.space import Setting, Space, Value, current, key_of, space_of
from tidegate.tune.study import Study
from tidegate.tune.trial import Ask, Case, TwinPool, TwinTrial
from tidegate.tune.verdict import ROUNDING, Judged
from tidegate.twin.cost import StepCost


def cluster(slo: SloSpec | None = None, **engine: object) -> ClusterSpec:
    urls = [InstanceSpec(url=f"http://10.0.0.{number}:8000") for number in (1, 2)]
    pool = PoolSpec(model="llama", instances=urls, engine=EngineProfile(**engine))  # type: ignore[arg-type]
    phases = [PhaseSpec(name="steady", duration_s=10, rate=6), PhaseSpec(name="pulse", duration_s=10, rate=24)]
    return ClusterSpec(pools=[pool], traffic=TrafficSpec(phases=phases), slo=slo or SloSpec())


SPEC = cluster()
SPACE = space_of(SPEC, 9000)
START = SPACE.settled(SPACE.nearest(current(SPEC)))


class Hill:
    """A judge whose goodput is a known hill: highest at a step of 768 and a batch of 128, infeasible above 1,024."""

    def __init__(self, interrupt_after: int = 10**9, goal: Callable[[Setting, int], float] | None = None) -> None:
        self.asked: list[Ask] = []
        self._interrupt_after = interrupt_after
        self._goal = goal or hill

    def judge(self, asks: Sequence[Ask]) -> list[Judged | None]:
        if len(self.asked) >= self._interrupt_after:
            raise KeyboardInterrupt
        self.asked += asks
        return [None if time.monotonic() > ask.deadline_s else self._one(ask) for ask in asks]

    def _one(self, ask: Ask) -> Judged:
        goal = self._goal(ask.setting, ask.seed)
        tokens = int(ask.setting["step_tokens"])
        excess = max(0.0, tokens / 1024 - 1)
        results = Results(goodput=goal, ttft_p99_s=0.5, itl_p99_s=tokens / 20_000, output_tokens_per_s=100.0)
        return Judged(
            setting=ask.setting, feasible=excess == 0, excess=excess, goal=goal, results=results,
            why="P99 ITL is above" if excess else "",
        )  # fmt: skip


VALUES = {knob.name: knob.values for knob in SPACE.knobs}


def hill(setting: Setting, seed: int) -> float:
    steps, batches = VALUES["step_tokens"], VALUES["max_sequences"]
    step = steps.index(setting["step_tokens"]) - steps.index(768)
    batch = batches.index(setting["max_sequences"]) - batches.index(128)
    return 0.95 - 0.02 * abs(step) - 0.01 * abs(batch)


def search(judge: object, limits: Limits, space: Space = SPACE, study: Study | None = None) -> Found:
    memory = study or Study(space, limits.seed, "here")
    return Search(judge, space, memory, limits).run([START])  # type: ignore[arg-type]


def asked_on_the_slice(judge: Hill) -> list[str]:
    return [key_of(ask.setting) for ask in judge.asked if not ask.whole]


def test_the_hilltop_is_found_and_every_neighbour_has_its_reason() -> None:
    judge = Hill()
    found = search(judge, Limits(trials=60, seeds=2))
    assert found.winner is not None
    assert found.winner.setting["step_tokens"] == 768
    assert found.winner.setting["max_sequences"] == 128
    assert found.ended == "trials"
    wanted = {(knob, setting[knob]) for knob, setting in SPACE.neighbours(found.winner.setting)}
    assert {(one.knob, one.value) for one in found.neighbours} == wanted
    assert all(one.why and "not tried" not in one.why for one in found.neighbours)
    assert any("93.00% against 95.00%" in one.why for one in found.neighbours if one.knob == "step_tokens")


def test_what_gains_nothing_is_left_as_it_was() -> None:
    found = search(Hill(), Limits(trials=60))
    assert found.winner is not None
    changed = {name for name, value in found.winner.setting.items() if value != START[name]}
    assert changed <= {"step_tokens", "max_sequences", "max_in_flight"}


def test_nothing_is_tried_twice() -> None:
    judge = Hill()
    search(judge, Limits(trials=80))
    asked = asked_on_the_slice(judge)
    assert len(asked) == len(set(asked))


def test_a_space_that_is_used_up_ends_the_search() -> None:
    small = space_of(SPEC, 9000, fix=[k.name for k in SPACE.free if k.name not in ("step_tokens", "max_sequences")],
                     only={"step_tokens": [512, 768], "max_sequences": [64, 128]})  # fmt: skip
    judge = Hill()
    found = search(judge, Limits(trials=500), small)
    assert len(asked_on_the_slice(judge)) == small.points == 4
    assert found.ended == "converged"
    assert found.winner is not None


def test_the_same_seed_finds_the_same_winner() -> None:
    first, second = (search(Hill(), Limits(trials=40, seed=5)) for _ in range(2))
    assert [one.key for one in first.ranking] == [one.key for one in second.ranking]
    assert first.winner == second.winner


def test_an_interrupted_search_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "study.journal"
    judge = Hill(interrupt_after=24)
    begun = Study(SPACE, 1, "here", path)
    with pytest.raises(KeyboardInterrupt):
        search(judge, Limits(trials=60), study=begun)
    begun.close()
    study = Study(SPACE, 1, "here", path)
    assert study.resumed
    before = set(asked_on_the_slice(judge))
    assert set(study.known) == before
    later = Hill()
    found = search(later, Limits(trials=36), study=study)
    assert before.isdisjoint(asked_on_the_slice(later))
    assert found.winner is not None
    assert found.winner.setting["step_tokens"] == 768


def test_a_study_of_something_else_is_refused(tmp_path: Path) -> None:
    Study(SPACE, 1, "one", tmp_path / "s").close()
    with pytest.raises(BadInputError, match="holds a study of something else"):
        Study(SPACE, 1, "other", tmp_path / "s")
    (tmp_path / "t").write_text("not a journal\n")
    with pytest.raises(BadInputError, match="cannot hold a study"):
        Study(SPACE, 1, "one", tmp_path / "t")


def test_two_tunes_do_not_share_a_study(tmp_path: Path) -> None:
    first = Study(SPACE, 1, "one", tmp_path / "s")
    with pytest.raises(BadInputError, match="in use by another tune"):
        Study(SPACE, 1, "one", tmp_path / "s")
    first.close()
    Study(SPACE, 1, "one", tmp_path / "s")


def test_without_time_there_is_no_winner_and_no_trial() -> None:
    judge = Hill()
    found = search(judge, Limits(budget_s=-1.0))
    assert (judge.asked, found.winner, found.ended) == ([], None, "budget")


def test_a_winner_holds_on_every_seed() -> None:
    """The hilltop is a trap: on the second seed it falls."""

    def trap(setting: Setting, seed: int) -> float:
        return 0.1 if seed == 2 and setting["step_tokens"] == 768 else hill(setting, seed)

    found = search(Hill(goal=trap), Limits(trials=60, seeds=3))
    assert found.winner is not None
    assert found.winner.setting["step_tokens"] in (640, 896)
    assert len(found.winner.runs) == 3


def test_nothing_feasible_ends_soon() -> None:
    narrow = space_of(SPEC, 9000, only={"step_tokens": [2048, 4096, 8192]})

    def flat(setting: Setting, seed: int) -> float:
        return 0.5

    judge = Hill(goal=flat)
    found = Search(judge, narrow, Study(narrow, 1, "x"), Limits(trials=1000)).run([START])
    assert (found.winner, found.ended) == (None, "infeasible")
    assert len(judge.asked) <= 64
    assert found.ranking[0].setting["step_tokens"] == 2048, "the nearest comes first"


def test_importance_names_what_decides() -> None:
    found = search(Hill(), Limits(trials=100))
    assert sum(found.importance.values()) == pytest.approx(1.0, abs=0.01)
    assert next(iter(found.importance)) in ("step_tokens", "max_sequences")


POINTS = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=12)


@given(POINTS)
def test_the_front_holds_exactly_what_nothing_beats(points: list[tuple[int, int]]) -> None:
    judged = [
        Judged(setting={"n": number}, feasible=True, excess=0, goal=good / 10,
               results=Results(itl_p99_s=itl / 100, goodput=good / 10))
        for number, (itl, good) in enumerate(points)
    ]  # fmt: skip
    shown = {(one.results.itl_p99_s, one.results.goodput) for one in front(judged) if one.results is not None}
    for itl, good in points:
        beaten = any(other != (itl, good) and other[0] <= itl and other[1] >= good for other in points)
        assert ((itl / 100, good / 10) in shown) == (not beaten)


# --- in the twin ------------------------------------------------------------------------------------------------


def case(spec: ClusterSpec = SPEC) -> Case:
    return Case(spec=spec, base_dir=Path())


def test_the_search_finds_what_a_grid_finds() -> None:
    grid: dict[str, Sequence[Value]] = {
        "step_tokens": [512, 768, 1024, 2048], "max_sequences": [32, 64, 128], "long_share": [0.25, 0.5],
    }  # fmt: skip
    small = space_of(SPEC, 9000, fix=[knob.name for knob in SPACE.free if knob.name not in grid], only=grid)
    twin = TwinTrial(case())
    dense = [
        twin.one(
            Ask(
                setting=small.settled({**START, "step_tokens": step, "max_sequences": batch, "long_share": share}),
                seed=1,
            )
        )
        for step, batch, share in product(*(grid[name] for name in ("step_tokens", "max_sequences", "long_share")))
    ]
    best = max(one.goal for one in dense if one is not None and one.feasible)
    found = Search(twin, small, Study(small, 1, "x"), Limits(trials=10, seeds=1)).run([START])
    assert found.winner is not None
    assert found.winner.goal >= 0.98 * best


def test_processes_change_the_time_and_not_the_result() -> None:
    limits = Limits(trials=8, seeds=1)
    alone = Search(TwinTrial(case()), SPACE, Study(SPACE, 1, "x"), limits).run([START])
    with TwinPool(case(), 2) as pool:
        together = Search(pool, SPACE, Study(SPACE, 1, "x"), limits).run([START])
    assert [one.key for one in alone.ranking] == [one.key for one in together.ranking]
    assert alone.winner == together.winner


SETTINGS = st.fixed_dictionaries({
    "step_tokens": st.sampled_from([512, 1024, 2048, 8192]),
    "max_sequences": st.sampled_from([32, 128, 512]),
    "ttft_headroom": st.sampled_from([0.7, 1.0]),
})  # fmt: skip


@settings(max_examples=12)
@given(SETTINGS, st.sampled_from([0.5, 0.9, 0.99]))
def test_what_is_given_up_early_was_hopeless(changes: dict[str, int | float], best: float) -> None:
    setting = SPACE.settled({**START, **changes})
    twin = TwinTrial(case())
    early, whole = (twin.one(Ask(setting=setting, seed=1, best=value)) for value in (best, -1.0))
    assert early is not None
    assert whole is not None
    if not early.pruned:
        assert early == whole
    else:
        assert not whole.feasible or whole.goal < best
        assert whole.goal <= early.goal + ROUNDING, "what it said it could reach is a bound"


def test_a_trial_ends_when_the_time_is_up() -> None:
    assert TwinTrial(case()).one(Ask(setting=START, seed=1, deadline_s=time.monotonic() - 1)) is None


def test_what_cannot_start_loses_for_that() -> None:
    twin = TwinTrial(case())
    low = twin.one(Ask(setting={**START, "step_tokens": 512, "max_sequences": 1024}, seed=1))
    risky = twin.one(Ask(setting={**START, "memory_fraction": 0.96}, seed=1))
    assert low is not None
    assert risky is not None
    assert "would not start" in low.why
    assert "out-of-memory risk" in risky.why
    assert not low.ran
    assert not risky.feasible


# --- when nothing can be done ------------------------------------------------------------------------------------


def test_the_arithmetic_of_a_step_and_a_prompt() -> None:
    """A 768-token chunk keeps 50 ms, 1024 does not; 16 k tokens then take most of 800 ms (peers.md)."""
    spec = cluster()
    plans = [*plan(spec.traffic, Path())]
    bound = bound_of(spec, plans)
    assert bound is not None
    assert bound.step_tokens in (896, 1024)
    assert bound.step_s < 0.05
    cost = StepCost.for_profile(EngineProfile(step_tokens=2048, max_sequences=128))
    assert idle_ttft_s(cost, 16_000, 768) == pytest.approx(0.766, rel=0.05)
    assert cost.prefill_s(768, 768 * 384, 128, 1500) == pytest.approx(0.0448, rel=0.06)
    assert cost.prefill_s(1024, 1024 * 512, 128, 1500) > 0.05
    lines = explanation(spec, plans)
    assert "every prompt fits on an idle server" in lines[-1]
    strict = cluster(SloSpec(ttft_s=0.3))
    lines = explanation(strict, plans)
    assert "ways out" in lines[1]
    assert any("tokens here, and give longer ones" in line for line in lines)


def test_an_slo_that_no_step_keeps_is_told_without_a_search() -> None:
    plans = plan(SPEC.traffic, Path())
    assert impossible(SPEC, plans) == ""
    assert "no step is short enough for an ITL of 5.00 ms" in impossible(cluster(SloSpec(itl_s=0.005)), plans)
    assert "no prompt of this traffic" in impossible(cluster(SloSpec(ttft_s=0.001)), plans)
