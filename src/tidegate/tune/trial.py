"""Trials: one protocol for whoever can say what a setting does, and the twin behind it.

In: a `Setting` and a seed. Out: `Judged`, or None when the time ran out first. The search asks a `Judge` and cannot
tell whether a simulation or a running engine answered; live trials are in `tune/live.py`.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

import msgspec
from msgspec import Struct

from tidegate.errors import BadInputError
from tidegate.spec import ClusterSpec
from tidegate.traffic.figures import figures_of
from tidegate.traffic.plan import PlannedRequest
from tidegate.traffic.record import PhaseMark
from tidegate.traffic.schedule import plan, planned_marks
from tidegate.tune.space import Setting, applied
from tidegate.tune.verdict import Goal, Judged, Watch, given_up, judge_figures, not_started, oom_risk
from tidegate.twin.calibration import Calibration
from tidegate.twin.cluster import record_of
from tidegate.twin.shell import Shell

LOOK_EVERY: Final = 5
"""Progress calls (about a simulated second each) between two looks at the requests."""


class Ask(Struct, frozen=True, kw_only=True):
    """What is to be tried. `whole`: the whole scenario, not only the slice that trials are judged on."""

    setting: Setting
    seed: int
    whole: bool = False
    best: float = -1.0
    """Goodput to beat; -1 to run to the end whatever comes."""
    deadline_s: float = float("inf")
    """On the monotonic clock."""


class Judge(Protocol):
    """Says what settings do. Answers in the order of the questions; None where time ran out."""

    def judge(self, asks: Sequence[Ask]) -> list[Judged | None]:
        """Tries each."""
        ...


class Case(Struct, frozen=True, kw_only=True):
    """What settings are judged on. `slice_s` bounds what a trial plays; finalists play the whole scenario."""

    spec: ClusterSpec
    base_dir: Path
    goal: Goal = "goodput"
    least_goodput: float = 0.0
    slice_s: float = 600.0
    step_factor: float = 1.0
    """How much longer than the tables say a step takes, as live trials told."""


class _OverError(Exception):
    """Ends a simulation: `judged` says why, None when time ran out."""

    def __init__(self, judged: Judged | None) -> None:
        super().__init__()
        self.judged = judged


class TwinTrial:
    """Simulates one setting after the other. Plans are drawn once for each seed."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self._plans: dict[tuple[int, bool], tuple[list[PlannedRequest], list[PhaseMark]]] = {}

    def judge(self, asks: Sequence[Ask]) -> list[Judged | None]:
        return [self.one(ask) for ask in asks]

    def one(self, ask: Ask) -> Judged | None:
        """One setting."""
        try:
            spec = applied(self.case.spec, ask.setting)
        except msgspec.ValidationError as exc:
            return not_started(ask.setting, f"the engine would not start: {exc}")
        risk = oom_risk(spec.pools[0].engine)
        if risk:
            return not_started(ask.setting, risk)
        try:
            return self._simulated(spec, ask)
        except BadInputError as exc:
            return not_started(ask.setting, f"the engine would not start: {exc.message}")
        except _OverError as over:
            return over.judged

    def plans(self, seed: int, whole: bool) -> tuple[list[PlannedRequest], list[PhaseMark]]:
        """What is sent."""
        found = self._plans.get((seed, whole))
        if found is None:
            traffic = msgspec.structs.replace(self.case.spec.traffic, seed=seed)
            plans = plan(traffic, self.case.base_dir)
            marks = planned_marks(traffic, plans)
            found = (plans, marks) if whole else sliced(plans, marks, self.case.slice_s)
            self._plans[seed, whole] = found
        return found

    def _simulated(self, spec: ClusterSpec, ask: Ask) -> Judged:
        plans, marks = self.plans(ask.seed, ask.whole)
        watch = Watch(plans, spec.slo, ask.best)
        looks = 0

        def look(now_s: float, ended: int, planned: int) -> None:
            nonlocal looks
            looks += 1
            if time.monotonic() > ask.deadline_s:
                raise _OverError(None)
            hopeless = watch.hopeless(shell.records) if ask.best >= 0.0 and looks % LOOK_EVERY == 0 else None
            if hopeless is not None:
                why, excess, reach = hopeless
                text = f"{why}, {now_s:.0f} s into the scenario"
                raise _OverError(given_up(ask.setting, text, excess, reach if self.case.goal == "goodput" else -1e9))

        factor = self.case.step_factor
        calibration = Calibration(decode_factor=factor, prefill_factor=factor)
        shell = Shell(spec, plans, calibration=calibration, progress=look)
        shell.run()
        run = record_of(shell, spec, plans, marks, "trial", "trial", "")
        return judge_figures(ask.setting, figures_of(run), spec.slo, self.case.goal, self.case.least_goodput)


def sliced(
    plans: list[PlannedRequest], marks: list[PhaseMark], length_s: float
) -> tuple[list[PlannedRequest], list[PhaseMark]]:
    """The stretch of `length_s` around the busiest phase, which begins a third into it; all of a shorter plan."""
    end_s = marks[-1].end_s if marks else 0.0
    if end_s <= length_s or not plans:
        return plans, marks
    busiest = max(marks, key=lambda mark: _rate(plans, mark))
    start_s = min(max(0.0, busiest.start_s - length_s / 3), end_s - length_s)
    stop_s = start_s + length_s
    kept = [msgspec.structs.replace(one, at_s=one.at_s - start_s) for one in plans if start_s <= one.at_s < stop_s]
    inside = [
        PhaseMark(mark.name, max(mark.start_s, start_s) - start_s, min(mark.end_s, stop_s) - start_s)
        for mark in marks
        if mark.end_s > start_s and mark.start_s < stop_s
    ]
    return kept, inside


def _rate(plans: list[PlannedRequest], mark: PhaseMark) -> float:
    inside = sum(mark.start_s <= one.at_s < mark.end_s for one in plans)
    return inside / max(1e-9, mark.end_s - mark.start_s)


class TwinPool:
    """The twin on several processes. Use as a context manager."""

    def __init__(self, case: Case, jobs: int) -> None:
        self._pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_begin, initargs=(case,))

    def judge(self, asks: Sequence[Ask]) -> list[Judged | None]:
        return list(self._pool.map(_one, asks))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)


_WORKER: Final[list[TwinTrial]] = []
"""The one trial of a worker process."""


def _begin(case: Case) -> None:
    # Ctrl-C reaches the whole group; the parent alone answers it, and ends the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _WORKER[:] = [TwinTrial(case)]


def _one(ask: Ask) -> Judged | None:
    return _WORKER[0].one(ask)
