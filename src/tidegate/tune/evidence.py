"""Evidence for a configuration: simulations of several seeds, or a recorded run.

In: a cluster with its traffic, or a `RunRecord`. Out: `Evidence` with the figures of the worst seed: a promise is kept
by the worst day, not by the mean.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from tidegate.errors import BadInputError
from tidegate.spec import ClusterSpec, SloSpec
from tidegate.spec.lock import Evidence, Results
from tidegate.traffic.figures import RunFigures, figures_of
from tidegate.traffic.plan import PlannedRequest
from tidegate.traffic.record import RunRecord
from tidegate.traffic.schedule import plan, planned_marks
from tidegate.twin.cluster import simulate

_LOWEST: Final = ("goodput", "output_tokens_per_s")
"""Results whose worst is the least; of the others it is the most."""


def twin_evidence(
    spec: ClusterSpec,
    base_dir: Path,
    seeds: Sequence[int],
    *,
    config: str,
    date: str,
    progress: Callable[[int], None] | None = None,
) -> Evidence:
    """Simulates the spec's traffic once for each seed; `progress` is told each seed before it runs.

    Raises `BadInputError` where the twin cannot run the cluster.
    """
    found: list[RunFigures] = []
    scenario = ""
    sent = 0
    for seed in seeds:
        if progress is not None:
            progress(seed)
        traffic = msgspec.structs.replace(spec.traffic, seed=seed)
        plans = plan(traffic, base_dir)
        run = simulate(msgspec.structs.replace(spec, traffic=traffic), plans, marks=planned_marks(traffic, plans))
        found.append(figures_of(run))
        scenario = scenario or scenario_of(plans)
        sent += len(plans)
    return Evidence(
        source="twin",
        config=config,
        scenario=scenario,
        ttft_s=spec.slo.ttft_s,
        itl_s=spec.slo.itl_s,
        seeds=list(seeds),
        requests=sent,
        date=date,
        meets_slo=all(within(figures, spec.slo) for figures in found),
        results=worst([results_of(figures) for figures in found]),
    )


def run_evidence(run: RunRecord, slo: SloSpec, *, config: str) -> Evidence:
    """A recorded run, judged by `slo`. Raises `BadInputError` for a run that proves nothing."""
    figures = figures_of(run)
    if run.interrupted or figures.client_bound or figures.accounting.balanced is False or not run.requests:
        why = figures.client_bound_why or "it was interrupted, is empty, or does not account for every request"
        raise BadInputError(f"run {run.id} is no evidence: {why}", hint="run it again with `tidegate load`")
    source = "twin" if run.kind == "twin" else "emulated" if run.emulated else "live"
    return Evidence(
        source=source,  # type: ignore[arg-type]
        config=config,
        scenario=scenario_of([record.plan for record in run.requests]),
        ttft_s=slo.ttft_s,
        itl_s=slo.itl_s,
        seeds=[run.seed],
        requests=len(run.requests),
        date=run.started_at or "unknown",
        meets_slo=within(figures, slo),
        results=results_of(figures),
    )


def scenario_of(plans: Sequence[PlannedRequest]) -> str:
    """The hash of what is sent and when, to the millisecond."""
    whole = hashlib.sha256()
    for one in sorted(plans, key=lambda each: each.index):
        whole.update(f"{one.at_s:.3f} {one.prompt_tokens} {one.output_tokens} {one.stream:d}\n".encode())
    return "sha256:" + whole.hexdigest()


def within(figures: RunFigures, slo: SloSpec) -> bool:
    """Whether both percentiles are known and within the SLO."""
    ttft_s, itl_s = figures.total.ttft.p99_s, figures.total.itl.p99_s
    return ttft_s is not None and itl_s is not None and ttft_s <= slo.ttft_s and itl_s <= slo.itl_s


def results_of(figures: RunFigures) -> Results:
    """The figures a lock keeps."""
    total = figures.total
    return Results(
        goodput=_rounded(total.goodput_share),
        ttft_p99_s=_rounded(total.ttft.p99_s),
        itl_p99_s=_rounded(total.itl.p99_s),
        output_tokens_per_s=_rounded(total.output_tokens_per_s),
        cost_per_m_output=_rounded(figures.cost_per_m_output),
        kv_peak=_rounded(figures.kv_peak_fraction),
        preemptions=figures.preemptions,
    )


def worst(results: Sequence[Results]) -> Results:
    """The worst of each figure; unknown as soon as one is."""
    values: dict[str, float | None] = {}
    for name in Results.__struct_fields__:
        seen = [getattr(one, name) for one in results]
        pick = min if name in _LOWEST else max
        values[name] = None if any(value is None for value in seen) else pick(seen)
    return Results(**values)  # type: ignore[arg-type]


def _rounded(value: float | None) -> float | None:
    """Six significant digits: more would only make diffs noisy."""
    return None if value is None else float(f"{value:.6g}")
