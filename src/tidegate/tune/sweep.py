"""A small exhaustive search: step budget × sequences × prompt tokens the gateway lets pile up on an instance, each
combination simulated with the gate's policies.

Hard constraints are the SLO's percentiles: P99 of the inter-token gaps, and P99 TTFT of those that got an answer. Goal
is goodput: requests that met every SLO, of all sent, so that refusing everybody wins nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

import msgspec
from msgspec import Struct

from tidegate.errors import BadInputError
from tidegate.spec import ClusterSpec, EngineProfile
from tidegate.traffic.figures import Figures, figures_of
from tidegate.traffic.plan import PlannedRequest
from tidegate.traffic.record import PhaseMark
from tidegate.twin.cluster import simulate
from tidegate.units import format_duration

STEP_TOKENS = (512, 768, 1024, 2048, 8192)
MAX_SEQUENCES = (64, 128, 256)

Progress = Callable[[int, int, str], None]
"""(trials done, trials in all, what is tried next or was found)."""


class Candidate(Struct, frozen=True, order=True):
    """Settings to try. `max_prefill_tokens` is the gateway's (`AdmissionSpec`), the others are the engine's."""

    step_tokens: int
    max_sequences: int
    max_prefill_tokens: int

    @property
    def name(self) -> str:
        """For people."""
        return (
            f"{self.step_tokens} tokens a step × {self.max_sequences} sequences, {self.max_prefill_tokens} in prefill"
        )

    def applied(self, spec: ClusterSpec) -> ClusterSpec:
        """`spec` with these settings in every pool. The gateway then holds at most `max_sequences` requests in flight
        on an instance: more would only wait inside the engine, where no policy reaches them."""
        pools = [msgspec.structs.replace(pool, engine=self._engine(pool.engine)) for pool in spec.pools]
        admission = msgspec.structs.replace(
            spec.gateway.admission,
            max_in_flight=min(spec.gateway.admission.max_in_flight, self.max_sequences),
            max_prefill_tokens=self.max_prefill_tokens,
        )
        gateway = msgspec.structs.replace(spec.gateway, admission=admission)
        return msgspec.structs.replace(spec, pools=pools, gateway=gateway)

    def _engine(self, profile: EngineProfile) -> EngineProfile:
        return msgspec.structs.replace(profile, step_tokens=self.step_tokens, max_sequences=self.max_sequences)


class Trial(Struct, frozen=True, kw_only=True):
    """One candidate and what became of it."""

    candidate: Candidate
    feasible: bool
    """Every hard constraint held."""
    excess: float
    """Sum over constraints of how far, as a share, each was missed; 0 when feasible, infinite when it cannot start."""
    lost_because: str = ""
    """Why it is not the winner; empty for the winner alone."""
    figures: Figures | None = None
    """None when the engine would not start with these settings."""

    @property
    def goodput(self) -> float:
        """Share of sent requests that met every SLO."""
        share = None if self.figures is None else self.figures.goodput_share
        return 0.0 if share is None else share


def sweep(
    spec: ClusterSpec,
    plans: list[PlannedRequest],
    step_tokens: Sequence[int] = STEP_TOKENS,
    max_sequences: Sequence[int] = MAX_SEQUENCES,
    max_prefill_tokens: Sequence[int] = (),
    *,
    marks: list[PhaseMark] | None = None,
    progress: Progress | None = None,
) -> list[Trial]:
    """Simulates every candidate; the winner comes first, then the others by how close they came.

    Without `max_prefill_tokens` the spec's own bound stays. The first trial is the winner only if it is `feasible`;
    otherwise nothing tried keeps the SLO, and it is merely the nearest. Raises `BadInputError` when no candidate can
    even start.
    """
    prefill = max_prefill_tokens or (spec.gateway.admission.max_prefill_tokens,)
    grid = [Candidate(*values) for values in product(step_tokens, max_sequences, prefill)]
    trials: list[Trial] = []
    for candidate in grid:
        if progress is not None:
            progress(len(trials), len(grid), candidate.name)
        trials.append(_try(spec, plans, marks, candidate))
    if all(trial.figures is None for trial in trials):
        raise BadInputError(f"no candidate can start: {trials[0].lost_because}" if trials else "nothing to try")
    ranked = sorted(trials, key=_rank)
    if progress is not None:
        progress(len(trials), len(grid), ranked[0].candidate.name)
    return _with_reasons(ranked)


def _try(spec: ClusterSpec, plans: list[PlannedRequest], marks: list[PhaseMark] | None, candidate: Candidate) -> Trial:
    try:
        run = simulate(candidate.applied(spec), plans, admission=True, marks=marks)
    except BadInputError as exc:
        why = f"the engine would not start: {exc.message}"
        return Trial(candidate=candidate, feasible=False, excess=float("inf"), lost_because=why)
    figures = figures_of(run).total
    missed = _missed(spec, figures)
    return Trial(
        candidate=candidate,
        feasible=not missed,
        excess=sum(share for share, _ in missed),
        lost_because="; ".join(why for _, why in missed),
        figures=figures,
    )


def _missed(spec: ClusterSpec, figures: Figures) -> list[tuple[float, str]]:
    """(how far, in words) for every constraint that does not hold."""
    checks = (
        ("P99 ITL", figures.itl.p99_s, spec.slo.itl_s),
        ("P99 TTFT", figures.ttft.p99_s, spec.slo.ttft_s),
    )
    missed: list[tuple[float, str]] = []
    for name, value_s, limit_s in checks:
        if value_s is None:
            missed.append((1.0, f"{name} is unknown: nothing was answered"))
        elif value_s > limit_s:
            text = f"{name} {format_duration(value_s)} is above {format_duration(limit_s)}"
            missed.append((value_s / limit_s - 1.0, text))
    return missed


def _rank(trial: Trial) -> tuple[bool, float, float, float, Candidate]:
    """Feasible first, then least excess, most goodput, most tokens; smaller settings break a tie."""
    rate = 0.0 if trial.figures is None else trial.figures.output_tokens_per_s or 0.0
    return (not trial.feasible, trial.excess, -trial.goodput, -rate, trial.candidate)


def _with_reasons(ranked: list[Trial]) -> list[Trial]:
    best = ranked[0]
    if not best.feasible:
        return ranked
    told = [msgspec.structs.replace(best, lost_because="")]
    for trial in ranked[1:]:
        why = trial.lost_because or _second_best(trial, best)
        told.append(msgspec.structs.replace(trial, lost_because=why))
    return told


def _second_best(trial: Trial, best: Trial) -> str:
    if trial.goodput < best.goodput:
        return f"goodput {trial.goodput:.1%} against {best.goodput:.1%}"
    return f"goodput {trial.goodput:.1%} as the winner's, but no better throughput"
