"""The search: starting points, proposals in batches, steps to better neighbours, finalists on several seeds, a winner.

    start points → proposals (until trials, time or ideas end) → climb over neighbours
    → back to the present value wherever that loses nothing → finalists × seeds → winner
    → what is left of its neighbours, to say why they are not it

In: a `Judge`, a `Space`, a `Study`, `Limits`. Out: a `Found`: the ranking, the winner or why there is none, and for
each neighbour of the winner why it is not the winner. Batches have a fixed size, so that the number of processes
changes the time and not the result: same seed, same winner, unless the clock ended the search.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from tidegate.spec.lock import Results
from tidegate.tune.evidence import worst
from tidegate.tune.space import Setting, Space, key_of
from tidegate.tune.study import Study
from tidegate.tune.trial import Ask, Judge
from tidegate.tune.verdict import Goal, Judged, rank

BATCH: Final = 4
PATIENCE: Final = 3
"""Batches in a row without a new setting that end the search."""
HOPE: Final = 60
"""Settings judged without one feasible that end the search."""
CLIMBS: Final = 4
FINALISTS: Final = 3
MOST_FINALS: Final = 8
MOST_UNSTARTED: Final = 5
"""Settings looked at for each that may be run: enough that a narrow space is still found."""
SHAPE: Final = ("kind", "gpus", "weights", "step_tokens")
"""What finalists must differ in once the first few fell."""
RIVALS: Final = 0.02
"""Settings within this share of the best goal are run to their end: one of them may be surer over all seeds."""
FINALS_SHARE: Final = 0.35
"""Share of a time budget kept for climbing and finals."""
NEAR: Final = 0.002
"""A neighbour must be better by this share of the goal to be climbed to: less is the draw of one seed."""

Say = Callable[[str, int, Judged | None], None]
"""(stage, settings judged so far, the newest result)."""


class Limits(Struct, frozen=True, kw_only=True):
    """When to stop. `budget_s` is wall-clock for everything; None for no bound."""

    trials: int = 100
    """Settings run before the climb; those that no engine starts with cost nothing and are not counted."""
    budget_s: float | None = None
    seed: int = 1
    seeds: int = 3


class Finalist(Struct, frozen=True, kw_only=True):
    """A finalist on every seed, the whole scenario each."""

    setting: Setting
    runs: list[Judged]

    @property
    def feasible(self) -> bool:
        return all(run.feasible for run in self.runs)

    @property
    def goal(self) -> float:
        """The worst seed's."""
        return min(run.goal for run in self.runs)

    @property
    def results(self) -> Results:
        """The worst of each figure."""
        return worst([run.results for run in self.runs if run.results is not None])

    @property
    def why(self) -> str:
        """What it misses, on which run."""
        return "; ".join(f"run {number}: {run.why}" for number, run in enumerate(self.runs, 1) if run.why)


class Neighbour(Struct, frozen=True, kw_only=True):
    """A setting one step from the winner, and why it is not the winner."""

    knob: str
    value: object
    why: str


class Found(Struct, frozen=True, kw_only=True):
    """What a search found."""

    ranking: list[Judged]
    """Everything judged, best first, on the search's seed and slice."""
    winner: Finalist | None
    """None when nothing feasible was found, or the time ran out before a finalist was sure."""
    finals: list[Finalist]
    neighbours: list[Neighbour]
    importance: dict[str, float]
    evaluations: int
    """Settings run by this search; resumed ones and the finalists' runs are not counted."""
    ended: str
    """Why the search ended: trials, budget, converged, or infeasible."""
    wall_s: float


class Search:
    """One search; `run` may be called once."""

    def __init__(
        self, judge: Judge, space: Space, study: Study, limits: Limits, goal: Goal = "goodput", say: Say | None = None
    ) -> None:
        self._judge = judge
        self._space = space
        self._study = study
        self._limits = limits
        self._goal = goal
        self._say = say
        self._began_s = time.monotonic()
        budget_s = limits.budget_s
        self._deadline_s = float("inf") if budget_s is None else self._began_s + budget_s
        self._search_until_s = float("inf") if budget_s is None else self._began_s + budget_s * (1 - FINALS_SHARE)
        self._evaluations = 0
        self._finals: list[Finalist] = []
        self._settled: Judged | None = None

    def run(self, starts: Sequence[Setting]) -> Found:
        """Searches from `starts`, of which the first is the present setting."""
        self._try("start", [self._space.settled(self._space.nearest(one)) for one in starts], self._deadline_s)
        ended = self._explore()
        winner = None
        if ended != "infeasible":
            self._climb()
            self._settle(self._space.settled(self._space.nearest(starts[0])))
            winner = self._decide()
        if winner is not None:
            around = [setting for _, setting in self._space.neighbours(winner.setting)]
            self._try("neighbours", around, self._deadline_s)
        return Found(
            ranking=sorted(self._study.known.values(), key=rank),
            winner=winner,
            finals=self._finals,
            neighbours=[] if winner is None else self._neighbours(winner),
            importance=self._study.importance(),
            evaluations=self._evaluations,
            ended=ended,
            wall_s=time.monotonic() - self._began_s,
        )

    def _explore(self) -> str:
        idle = 0
        while True:
            known, ran = self._study.known, self._ran
            if ran >= self._limits.trials or len(known) >= MOST_UNSTARTED * self._limits.trials:
                return "trials" if self._best() is not None else "infeasible"
            if max(ran, len(known) // MOST_UNSTARTED) >= HOPE and not any(one.feasible for one in known.values()):
                return "infeasible"
            if time.monotonic() > self._search_until_s:
                return "budget"
            proposals = self._study.propose(min(BATCH, self._limits.trials - ran))
            idle = 0 if proposals else idle + 1
            if idle >= PATIENCE:
                return "converged"
            self._try("search", proposals, self._search_until_s)

    @property
    def _ran(self) -> int:
        return sum(judged.ran for judged in self._study.known.values())

    def _climb(self) -> None:
        """Goes to a better neighbour as long as there is one."""
        for _ in range(CLIMBS):
            best = self._best()
            if best is None:
                return
            self._try("climb", [setting for _, setting in self._space.neighbours(best.setting)], self._climb_until_s())
            after = self._best()
            if after is None or after.goal <= best.goal + NEAR * abs(best.goal):
                return

    def _settle(self, present: Setting) -> None:
        """Takes back, knob by knob, every change of the best that gains nothing: what is changed must be worth it."""
        best = self._best()
        if best is None:
            return
        kept = best
        for name in [name for name, value in best.setting.items() if present[name] != value]:
            stepped = self._space.settled({**kept.setting, name: present[name]})
            least = best.goal - NEAR * abs(best.goal)
            self._try("settle", [stepped], self._climb_until_s(), least)
            judged = self._study.known.get(key_of(stepped))
            if judged is not None and judged.feasible and judged.goal >= least:
                kept = judged
        self._settled = kept

    def _climb_until_s(self) -> float:
        """Half of what is left goes to the finals."""
        now = time.monotonic()
        return now + (self._deadline_s - now) / 2

    def _best(self) -> Judged | None:
        best = min(self._study.known.values(), key=rank, default=None)
        return best if best is not None and best.feasible else None

    def _decide(self) -> Finalist | None:
        """Finalists are judged on the whole scenario with every seed.

        First the best few. While none of them is as good on its worst seed as the next one looked on the slice, others
        follow, each with another shape of engine: what fell with one shape falls with its like.
        """
        ranked = [judged for judged in sorted(self._study.known.values(), key=rank) if judged.feasible]
        if self._settled is not None:
            ranked = [self._settled, *(judged for judged in ranked if judged.key != self._settled.key)]
        shapes = set()
        for judged in ranked:
            best = self._surest()
            shape = tuple(judged.setting.get(name) for name in SHAPE)
            if len(self._finals) >= FINALISTS:
                if best is not None and best.goal >= judged.goal - NEAR * abs(judged.goal):
                    break
                if shape in shapes:
                    continue
            if len(self._finals) >= MOST_FINALS or not self._final(judged.setting):
                break
            shapes.add(shape)
        return self._surest()

    def _final(self, setting: Setting) -> bool:
        """Runs one finalist on every seed; False when time ran out."""
        seeds = range(self._limits.seed, self._limits.seed + self._limits.seeds)
        asks = [Ask(setting=setting, seed=seed, whole=True, deadline_s=self._deadline_s) for seed in seeds]
        runs = [run for run in self._judge.judge(asks) if run is not None]
        if len(runs) < len(asks):
            return False
        self._finals.append(Finalist(setting=setting, runs=runs))
        self._tell("finals", runs[-1])
        return True

    def _surest(self) -> Finalist | None:
        """The best on its worst seed; the first, which changes least, where it is as good."""
        sure = [final for final in self._finals if final.feasible]
        best = min(sure, key=lambda final: (-final.goal, -_rate(final), key_of(final.setting)), default=None)
        if best is not None and sure[0].goal >= best.goal - NEAR * abs(best.goal):
            return sure[0]
        return best

    def _neighbours(self, winner: Finalist) -> list[Neighbour]:
        """Why each is not the winner; those never judged say so."""
        own = self._study.known.get(key_of(winner.setting))
        finals = {key_of(final.setting): final for final in self._finals}
        found = []
        for knob, setting in self._space.neighbours(winner.setting):
            judged = self._study.known.get(key_of(setting))
            final = finals.get(key_of(setting))
            why = _against(self._goal, judged, own, final, winner)
            found.append(Neighbour(knob=knob, value=setting[knob], why=why))
        return found

    def _try(self, stage: str, settings: Sequence[Setting], deadline_s: float, least: float | None = None) -> None:
        """Judges what is not known yet, in batches; what cannot reach `least` (by default the best so far) is given
        up early."""
        new = {key_of(setting): setting for setting in settings if key_of(setting) not in self._study.known}
        waiting = list(new.values())
        while waiting and time.monotonic() < deadline_s:
            batch, waiting = waiting[:BATCH], waiting[BATCH:]
            best = self._best()
            beat = best.goal * (1 - RIVALS) if best is not None and self._goal == "goodput" else 0.0
            if least is not None and self._goal == "goodput":
                beat = least
            asks = [Ask(setting=setting, seed=self._limits.seed, best=beat, deadline_s=deadline_s) for setting in batch]
            for setting, judged in zip(batch, self._judge.judge(asks), strict=True):
                if judged is None:
                    self._study.forget(setting)
                    continue
                self._study.add(judged)
                self._evaluations += judged.ran
                self._tell(stage, judged)
        for setting in waiting:
            self._study.forget(setting)

    def _tell(self, stage: str, judged: Judged) -> None:
        if self._say is not None:
            self._say(stage, len(self._study.known), judged)


def _rate(final: Finalist) -> float:
    return min(run.results.output_tokens_per_s or 0.0 for run in final.runs if run.results is not None)


def _against(goal: Goal, judged: Judged | None, own: Judged | None, final: Finalist | None, winner: Finalist) -> str:
    if judged is None:
        return "not tried: the budget was used up"
    if not judged.feasible:
        return judged.why
    if final is not None and not final.feasible:
        return final.why
    if final is not None:
        return _less(goal, final.goal, winner.goal, f"on the worst of {len(final.runs)} seeds")
    return _less(goal, judged.goal, own.goal if own is not None else winner.goal, "on the slice")


def _less(goal: Goal, mine: float, best: float, where: str) -> str:
    word = "goodput" if goal == "goodput" else "cost per million output tokens"
    both = f"{word} {_told(goal, mine)} against {_told(goal, best)} {where}"
    if abs(mine - best) <= NEAR * abs(best):
        return f"{both}: no better"
    return f"{both}: better on the slice of one seed, not proved on the others" if mine > best else both


def _told(goal: Goal, value: float) -> str:
    return f"{value:.2%}" if goal == "goodput" else f"{-value:.3f}"
