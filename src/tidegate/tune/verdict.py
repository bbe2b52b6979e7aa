"""Judging one setting: the hard constraints, the goal, and when a run is hopeless before its end.

In: the figures of a run, or the requests that have ended so far. Out: `Judged`, the one result that search, ranking,
reports and stored studies share. Hopeless is exact: it is said only when the rest of the run cannot mend it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from msgspec import Struct

from tidegate.errors import BadInputError
from tidegate.spec import EngineProfile, SloSpec
from tidegate.spec.lock import Results
from tidegate.traffic.figures import RunFigures, meets_slo
from tidegate.traffic.plan import PlannedRequest
from tidegate.traffic.record import RequestRecord
from tidegate.tune.evidence import results_of
from tidegate.tune.space import Setting, key_of
from tidegate.twin.steptable import find
from tidegate.units import format_bytes, format_duration

Goal = Literal["goodput", "cost"]
PERCENTILE_SHARE: Final = 0.01
ROUNDING: Final = 1e-5
"""Stored figures have six digits; a tie must not look hopeless."""
LEAST_FREE_BYTES: Final = 2 * 2**30
LEAST_FREE_SHARE: Final = 0.05
GRAPH_BYTES: Final = int(2.5 * 2**30)
"""CUDA graphs come on top of the fraction: 2.5 GiB for 80 layers in vLLM 0.24 and 4.2 in SGLang 0.5.17; the larger
models' figure for all, because the risk is what is asked for."""


class Judged(Struct, frozen=True, kw_only=True):
    """What became of one setting."""

    setting: Setting
    source: str = "twin"
    """`twin`, `emulated` or `live`."""
    feasible: bool
    """Every hard constraint held."""
    excess: float
    """Sum over constraints of how far, as a share, each was missed; 1e9 when it would not start."""
    goal: float
    """What is maximised: the goodput share, or money per million output tokens below zero."""
    why: str = ""
    """Why it is not feasible."""
    pruned: bool = False
    """Given up before the end: its figures are bounds."""
    results: Results | None = None
    """None when it never ran to the end."""
    itl_p50_s: float | None = None
    """The median gap: what a twin is calibrated by."""

    @property
    def ran(self) -> bool:
        """Whether an engine started with it."""
        return self.pruned or self.results is not None

    @property
    def key(self) -> str:
        return key_of(self.setting)

    @property
    def score(self) -> float:
        """One number for both: feasible by goal, else below everything feasible by excess."""
        return self.goal if self.feasible else -1000.0 - min(self.excess, 1e6)


def rank(judged: Judged) -> tuple[bool, float, float, float, str]:
    """Feasible first, then least excess, best goal, most tokens; the key breaks a tie."""
    rate = 0.0 if judged.results is None else judged.results.output_tokens_per_s or 0.0
    return (not judged.feasible, judged.excess, -judged.goal, -rate, judged.key)


def judge_figures(
    setting: Setting, figures: RunFigures, slo: SloSpec, goal: Goal, least_goodput: float, source: str = "twin"
) -> Judged:
    """A run that went to its end."""
    results = results_of(figures)
    missed = _missed(results, slo, least_goodput)
    return Judged(
        setting=setting,
        source=source,
        feasible=not missed,
        excess=sum(share for share, _ in missed),
        goal=goal_of(results, goal),
        why="; ".join(text for _, text in missed),
        results=results,
        itl_p50_s=figures.total.itl.p50_s,
    )


def goal_of(results: Results, goal: Goal) -> float:
    """What is maximised; the worst where it is unknown."""
    if goal == "goodput":
        return results.goodput or 0.0
    return -results.cost_per_m_output if results.cost_per_m_output is not None else -1e9


def not_started(setting: Setting, why: str) -> Judged:
    """No engine starts with it."""
    return Judged(setting=setting, feasible=False, excess=1e9, goal=-1e9, why=why)


def given_up(setting: Setting, why: str, excess: float, goal: float) -> Judged:
    """Hopeless before its end; feasible as far as seen when only the goal is out of reach."""
    return Judged(setting=setting, feasible=False, excess=excess, goal=goal, why=why, pruned=True)


def oom_risk(engine: EngineProfile) -> str:
    """Why the engine may run out of GPU memory under load, or nothing.

    Engines take their share at the start; what comes later (CUDA graphs, fragments, for SGLang activations too) must
    find room in the rest: max(2 GiB, 5 %) is to stay free (operators' reports of 0.97 and 0.99 dying under load).
    """
    try:
        memory = find(engine)[1].memory
    except BadInputError:
        return ""
    rest = memory.gpu_capacity_bytes * (1.0 - engine.memory_fraction)
    if engine.kind == "sglang":
        largest = max(int(tokens) for tokens in memory.activation_bytes_per_gpu_by_step_tokens)
        activation = memory.activation_bytes_per_gpu_by_step_tokens[str(largest)] * engine.step_tokens / largest
        rest -= activation + memory.runtime_overhead_bytes_per_gpu
    short = rest - GRAPH_BYTES < LEAST_FREE_BYTES or rest < LEAST_FREE_SHARE * memory.gpu_capacity_bytes
    if not short:
        return ""
    left = format_bytes(max(0.0, rest - GRAPH_BYTES))
    return (
        f"out-of-memory risk: memory_fraction {engine.memory_fraction:g} leaves {left} of a GPU after CUDA graphs,"
        f" and {format_bytes(LEAST_FREE_BYTES)} and {LEAST_FREE_SHARE:.0%} are to stay free"
    )


def _missed(results: Results, slo: SloSpec, least_goodput: float) -> list[tuple[float, str]]:
    missed = []
    checks = (("P99 ITL", results.itl_p99_s, slo.itl_s), ("P99 TTFT", results.ttft_p99_s, slo.ttft_s))
    for name, value_s, limit_s in checks:
        if value_s is None:
            missed.append((1.0, f"{name} is unknown: nothing was answered"))
        elif value_s > limit_s:
            text = f"{name} {format_duration(value_s)} is above {format_duration(limit_s)}"
            missed.append((value_s / limit_s - 1.0, text))
    goodput = results.goodput or 0.0
    if goodput < least_goodput:
        missed.append((least_goodput - goodput, f"goodput {goodput:.1%} is below {least_goodput:.1%}"))
    return missed


class Watch:
    """Follows a run and says when it is hopeless. `best` is the goodput to beat; -1 for none."""

    def __init__(self, plans: Sequence[PlannedRequest], slo: SloSpec, best: float) -> None:
        self._planned = len(plans)
        self._gaps = sum(max(0, one.output_tokens - 1) for one in plans if one.stream)
        self._slo = slo
        self._best = best
        self._seen = 0
        self._late = 0
        self._failed = 0
        self._long_gaps = 0

    def hopeless(self, records: Sequence[RequestRecord]) -> tuple[str, float, float] | None:
        """(why, excess, best goodput it could reach), or None while there is hope. `records` only ever grows."""
        for record in records[self._seen :]:
            self._take(record)
        self._seen = len(records)
        share = 1.0 - self._failed / self._planned if self._planned else 0.0
        late, gaps = self._late / max(1, self._planned), self._long_gaps / max(1, self._gaps)
        if late > PERCENTILE_SHARE:
            return f"P99 TTFT is above {format_duration(self._slo.ttft_s)} already ({late:.1%} were late)", late, share
        if gaps > PERCENTILE_SHARE:
            text = f"P99 ITL is above {format_duration(self._slo.itl_s)} already ({gaps:.1%} of all gaps were long)"
            return text, gaps, share
        if share < self._best - ROUNDING:
            return f"goodput can reach {share:.1%} at most, and {self._best:.1%} was found", 0.0, share
        return None

    def _take(self, record: RequestRecord) -> None:
        ttft_s = record.ttft_s
        if record.plan.stream:
            self._late += ttft_s is not None and ttft_s > self._slo.ttft_s
            self._long_gaps += record.gaps_over_slo
        self._failed += not meets_slo(record, self._slo.ttft_s, self._slo.itl_s)
