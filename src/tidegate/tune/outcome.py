"""What a tune has to say, in one value: for the terminal, for JSON and for the page.

In: a `Found` and what it was asked. Out: `TuneReport`, and the rows that every rendering shares.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Struct

from tidegate.spec import SloSpec
from tidegate.spec.lock import Results
from tidegate.tune.live import Proof
from tidegate.tune.search import Finalist, Found, Neighbour
from tidegate.tune.space import Setting, Space
from tidegate.tune.verdict import Goal, Judged
from tidegate.units import format_duration

RANKED: Final = 15
"""Settings shown in a ranking."""


class Winner(Struct, frozen=True, kw_only=True):
    """The setting to freeze. `results`: the worst of its seeds over the whole scenario."""

    setting: Setting
    results: Results
    seeds: list[int]


class TuneReport(Struct, frozen=True, kw_only=True):
    """A finished tune."""

    goal: Goal
    slo: SloSpec
    seed: int
    points: int
    """Settings in the space."""
    evaluations: int
    ended: str
    wall_s: float
    start: Setting
    """Where the cluster document stood."""
    winner: Winner | None
    finalists: list[Finalist]
    neighbours: list[Neighbour]
    importance: dict[str, float]
    ranking: list[Judged]
    explanation: list[str]
    """Why there is no winner, and ways out."""
    free: list[str]
    """Knobs that were searched."""
    proof: Proof | None = None
    """What live trials found, where they were asked for."""


def report_of(
    found: Found, space: Space, start: Setting, slo: SloSpec, goal: Goal, seeds: Sequence[int], explanation: list[str]
) -> TuneReport:
    """Puts a search's findings together."""
    best = found.winner
    winner = None if best is None else Winner(setting=best.setting, results=best.results, seeds=list(seeds))
    return TuneReport(
        goal=goal,
        slo=slo,
        seed=seeds[0],
        points=space.points,
        evaluations=found.evaluations,
        ended=found.ended,
        wall_s=round(found.wall_s, 2),
        start=start,
        winner=winner,
        finalists=found.finals,
        neighbours=found.neighbours,
        importance=found.importance,
        ranking=found.ranking,
        explanation=explanation,
        free=[knob.name for knob in space.free],
    )


def with_proof(report: TuneReport, proof: Proof) -> TuneReport:
    """The report after live trials: the winner is the best that kept the SLO there, and without one there is none."""
    best = proof.winner
    if best is None or best.results is None:
        reason = proof.stopped or "no setting of the shortlist kept the SLO live"
        return msgspec.structs.replace(report, winner=None, proof=proof, explanation=[*report.explanation, reason])
    seeds = report.winner.seeds if report.winner is not None else [report.seed]
    winner = Winner(setting=best.setting, results=best.results, seeds=seeds[:1])
    if report.winner is not None and report.winner.setting == best.setting:
        winner = report.winner
    return msgspec.structs.replace(report, winner=winner, proof=proof)


def proof_lines(report: TuneReport) -> list[str]:
    """The live trials for people."""
    proof = report.proof
    if proof is None:
        return []
    lines = [f"live trials: {proof.gpu_minutes:g} GPU minutes, the twin's steps times {proof.factor:g} from now on"]
    for number, step in enumerate(proof.steps, 1):
        before = ", ".join(cells_of(step.predicted)[:3]) if step.predicted is not None else "nothing"
        after = ", ".join(cells_of(step.seen)[:3]) if step.seen is not None else step.note
        lines.append(f"  {number}: predicted {before}; seen {after}")
    if proof.stopped:
        lines.append(f"  stopped: {proof.stopped}")
    return lines


def cells_of(judged: Judged) -> tuple[str, str, str, str]:
    """Goodput, P99 TTFT, P99 ITL, why not."""
    results = judged.results
    if results is None:
        goodput = f"≤ {judged.goal:.1%}" if judged.pruned and judged.goal >= 0 else ""
        return goodput, "", "", judged.why
    goodput = "unknown" if results.goodput is None else f"{results.goodput:.1%}"
    return goodput, _time(results.ttft_p99_s), _time(results.itl_p99_s), judged.why


def front(judged: Sequence[Judged]) -> list[Judged]:
    """Those that no other beats in both goodput and P99 ITL, by rising ITL."""
    known = [one for one in judged if one.results is not None and one.results.itl_p99_s is not None]
    best = -1.0
    found = []
    for one in sorted(known, key=_itl_then_goodput):
        goodput = one.results.goodput if one.results is not None else None
        if goodput is not None and goodput > best:
            best = goodput
            found.append(one)
    return found


def _itl_then_goodput(judged: Judged) -> tuple[float, float]:
    results = judged.results
    assert results is not None
    assert results.itl_p99_s is not None
    return results.itl_p99_s, -(results.goodput or 0.0)


def _time(value_s: float | None) -> str:
    return "unknown" if value_s is None else format_duration(value_s)
