"""Live trials: the shortlist proved on running engines, through the protocol that the twin answers too.

In: settings in the twin's order, the twin (at a step factor), something that starts a cluster with a setting and drives
the scenario through it. Out: a `Proof`. Each setting is predicted, run and compared, and teaches the twin how long its
steps really are before the next is predicted. Where twin and engine disagree by more than the stated error the twin is
not to be believed about the rest either, so everything stops.

    predict → (hopeless by what was learned: skip) → run → agree? → learn → next
                                                        '-- no: stop
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from tidegate.spec import ClusterSpec, SloSpec
from tidegate.traffic.figures import figures_of
from tidegate.traffic.record import RunRecord
from tidegate.tune.space import Setting, applied
from tidegate.tune.trial import Ask, Case, Judge
from tidegate.tune.verdict import Judged, judge_figures, not_started, oom_risk, rank
from tidegate.units import format_duration

Runner = Callable[[ClusterSpec, int], RunRecord]
"""Starts the engines of a cluster and a gateway before them, drives its traffic with this seed, ends them."""
CALIBRATE_FROM: Final = 0.02
"""A smaller difference in the median gap is noise of one run."""


class LiveTrial:
    """Judges settings by running them. Every run costs its GPUs for as long as it takes, loading included."""

    def __init__(self, case: Case, run: Runner, gpu_budget_s: float = math.inf) -> None:
        self.case = case
        self.gpu_seconds = 0.0
        """GPU time used so far."""
        self._run = run
        self._budget_s = gpu_budget_s
        self._longest_s = 0.0

    def judge(self, asks: Sequence[Ask]) -> list[Judged | None]:
        return [self.one(ask) for ask in asks]

    def one(self, ask: Ask) -> Judged | None:
        """One setting; None when the GPU time left would not do for a run as long as the longest so far."""
        spec = applied(self.case.spec, ask.setting)
        engine = spec.pools[0].engine
        risk = oom_risk(engine)
        if risk:
            return not_started(ask.setting, risk)
        gpus = engine.gpus * len(spec.pools[0].instances)
        if self.gpu_seconds + max(self._longest_s, self._scenario_s()) * gpus > self._budget_s:
            return None
        began_s = time.monotonic()
        try:
            run = self._run(spec, ask.seed)
        finally:
            took_s = time.monotonic() - began_s
            self._longest_s = max(self._longest_s, took_s)
            self.gpu_seconds += took_s * gpus
        source = "emulated" if run.emulated else "live"
        case = self.case
        return judge_figures(ask.setting, figures_of(run), case.spec.slo, case.goal, case.least_goodput, source)

    def _scenario_s(self) -> float:
        return sum(phase.duration_s for phase in self.case.spec.traffic.phases)


class Step(Struct, frozen=True, kw_only=True):
    """One setting of the shortlist."""

    setting: Setting
    predicted: Judged | None
    seen: Judged | None
    """None when it was not run."""
    factor: float
    """How much longer than the tables say the twin took a step to be when it predicted."""
    disagreement: str = ""
    note: str = ""


class Proof(Struct, frozen=True, kw_only=True):
    """What live trials found."""

    steps: list[Step]
    winner: Judged | None
    """The best that kept the SLO live; None when none did or the twin was not to be believed."""
    stopped: str
    """Why it ended before the shortlist did; empty when it did not."""
    factor: float
    """What the twin should take its steps times, by all runs."""
    gpu_minutes: float


def prove(
    shortlist: Sequence[Setting],
    twin: Callable[[float], Judge],
    live: LiveTrial,
    *,
    seed: int,
    error: float,
    say: Callable[[str], None] | None = None,
) -> Proof:
    """Runs the shortlist. `error` is the share of the SLO (of everything sent, for goodput) that twin and engine may
    differ by."""
    steps: list[Step] = []
    ratios: list[float] = []
    stopped = ""
    for setting in shortlist:
        factor = _factor(ratios)
        if say is not None:
            say(f"live trial {len(steps) + 1} of {len(shortlist)}")
        predicted = twin(factor).judge([Ask(setting=setting, seed=seed, whole=True)])[0]
        if ratios and predicted is not None and not predicted.feasible:
            note = f"not run: by what was learned it fails: {predicted.why}"
            steps.append(Step(setting=setting, predicted=predicted, seen=None, factor=factor, note=note))
            continue
        seen = live.one(Ask(setting=setting, seed=seed, whole=True))
        if seen is None:
            stopped = "the GPU minutes are used up"
            break
        differs = disagreement(predicted, seen, live.case.spec.slo, error)
        steps.append(Step(setting=setting, predicted=predicted, seen=seen, factor=factor, disagreement=differs))
        if differs:
            stopped = f"twin and engine disagree beyond {error:.0%}: {differs}"
            break
        ratio = _ratio(predicted, seen)
        if ratio is not None:
            ratios.append(ratio * factor)
    kept = [step.seen for step in steps if step.seen is not None and step.seen.feasible and not step.disagreement]
    return Proof(
        steps=steps,
        winner=min(kept, key=rank, default=None),
        stopped=stopped,
        factor=round(_factor(ratios), 4),
        gpu_minutes=round(live.gpu_seconds / 60, 2),
    )


def disagreement(predicted: Judged | None, seen: Judged, slo: SloSpec, error: float) -> str:
    """What differs by more than the stated error, in words; empty when they agree. Unknown agrees with nothing."""
    before, after = (None if one is None else one.results for one in (predicted, seen))
    if before is None or after is None:
        return "one of them did not run to its end"
    found = []
    for name, mine_s, its_s, limit_s in (
        ("P99 ITL", before.itl_p99_s, after.itl_p99_s, slo.itl_s),
        ("P99 TTFT", before.ttft_p99_s, after.ttft_p99_s, slo.ttft_s),
    ):
        if mine_s is None or its_s is None:
            found.append(f"{name} is unknown")
        elif abs(mine_s - its_s) > error * limit_s:
            found.append(f"{name} {format_duration(mine_s)} predicted, {format_duration(its_s)} seen")
    mine, its = before.goodput, after.goodput
    if mine is None or its is None:
        found.append("goodput is unknown")
    elif abs(mine - its) > error:
        found.append(f"goodput {mine:.1%} predicted, {its:.1%} seen")
    return "; ".join(found)


def _ratio(predicted: Judged | None, seen: Judged) -> float | None:
    """How much longer the median gap was than predicted."""
    if predicted is None or not predicted.itl_p50_s or not seen.itl_p50_s:
        return None
    return seen.itl_p50_s / predicted.itl_p50_s


def _factor(ratios: Sequence[float]) -> float:
    """The geometric mean; 1 while nothing to speak of was learned."""
    if not ratios:
        return 1.0
    mean = math.exp(sum(math.log(ratio) for ratio in ratios) / len(ratios))
    return mean if abs(mean - 1.0) > CALIBRATE_FROM else 1.0
