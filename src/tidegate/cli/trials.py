"""Several simulated runs beside one another: seeds with confidence intervals, settings one at a time, ways out.

A trial is a whole run of a cluster and its traffic; trials are independent and may use several processes.
"""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from tidegate.errors import BadInputError
from tidegate.spec import ClusterSpec, InstanceSpec, TrafficSpec
from tidegate.traffic.figures import figures_of
from tidegate.traffic.schedule import plan, planned_marks
from tidegate.twin.calibrationfile import CalibrationFile
from tidegate.twin.cluster import simulate
from tidegate.twin.faults import parse_fault

STUDENT_95: Final = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)
"""Two-sided 95 % quantiles of Student's t for 1, 2, … degrees of freedom."""
NORMAL_95: Final = 1.96
FINE_STEP_TOKENS: Final = 512
"""A step so small keeps gaps short; more instances make up for the prefill it costs."""


class Trial(Struct, frozen=True, kw_only=True):
    """What to run."""

    name: str
    spec: ClusterSpec
    base_dir: str
    calibration: CalibrationFile | None = None
    faults: tuple[str, ...] = ()
    gateways: int = 1
    admission: bool | None = None


class Score(Struct, frozen=True, kw_only=True):
    """What came of it. None where nothing was answered, or nothing could start (`why`)."""

    name: str
    ttft_p99_s: float | None = None
    itl_p99_s: float | None = None
    goodput: float | None = None
    preemptions: int | None = None
    kv_peak: float | None = None
    why: str = ""

    def meets(self, spec: ClusterSpec) -> bool:
        """Both percentiles are within the SLO and 99 % of what was sent met it."""
        if self.ttft_p99_s is None or self.itl_p99_s is None or self.goodput is None:
            return False
        return self.ttft_p99_s <= spec.slo.ttft_s and self.itl_p99_s <= spec.slo.itl_s and self.goodput >= 0.99


def run_trial(trial: Trial) -> Score:
    """One trial. A configuration that no engine starts with is a score with a reason, not an error."""
    spec = trial.spec
    try:
        requests = plan(spec.traffic, Path(trial.base_dir))
        run = simulate(
            spec,
            requests,
            admission=trial.admission,
            marks=planned_marks(spec.traffic, requests),
            calibration=None if trial.calibration is None else trial.calibration.calibration(),
            faults=[parse_fault(text) for text in trial.faults],
            gateways=trial.gateways,
        )
    except BadInputError as exc:
        return Score(name=trial.name, why=exc.message)
    figures = figures_of(run)
    return Score(
        name=trial.name,
        ttft_p99_s=figures.total.ttft.p99_s,
        itl_p99_s=figures.total.itl.p99_s,
        goodput=figures.total.goodput_share,
        preemptions=figures.preemptions,
        kv_peak=figures.kv_peak_fraction,
    )


def run_trials(trials: Sequence[Trial], jobs: int) -> list[Score]:
    """Their scores, in order, on up to `jobs` processes."""
    if jobs <= 1 or len(trials) < 2:
        return [run_trial(trial) for trial in trials]
    with ProcessPoolExecutor(min(jobs, len(trials)), multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(run_trial, trials))


def seeded(trial: Trial, count: int) -> list[Trial]:
    """The same with `count` seeds, the spec's own first."""
    traffic = trial.spec.traffic
    return [
        _with(trial, f"seed {traffic.seed + i}", _with_traffic(trial.spec, seed=traffic.seed + i)) for i in range(count)
    ]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean, and half of its 95 % confidence interval (Student's t); the half is infinite for one value."""
    mean = sum(values) / len(values)
    if len(values) < 2:
        return mean, math.inf
    variance = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
    free = len(values) - 1
    quantile = STUDENT_95[free - 1] if free <= len(STUDENT_95) else NORMAL_95
    return mean, quantile * math.sqrt(variance / len(values))


def varied(trial: Trial) -> list[Trial]:
    """Each setting that matters, lowered and raised on its own; the trial itself comes first."""
    engine, admission = trial.spec.pools[0].engine, trial.spec.gateway.admission
    queue = trial.spec.gateway.queue
    found = [trial]
    for name, low, high in (
        ("memory_fraction", max(0.5, engine.memory_fraction - 0.02), min(0.98, engine.memory_fraction + 0.02)),
        ("step_tokens", engine.step_tokens // 2, engine.step_tokens * 2),
        ("max_sequences", max(1, engine.max_sequences // 2), engine.max_sequences * 2),
    ):
        for value in (low, high):
            spec = with_engine(trial.spec, **{name: value})
            found.append(_with(trial, f"engine.{name} {value:g}", spec))
    for name, value in (
        ("prefill_ahead_s", admission.prefill_ahead_s / 2),
        ("prefill_ahead_s", admission.prefill_ahead_s * 2),
        ("max_in_flight", max(1, admission.max_in_flight // 2)),
        ("max_in_flight", admission.max_in_flight * 2),
    ):
        changed = msgspec.structs.replace(admission, **{name: value})
        label = f"admission.{name.removesuffix('_s')} {value:g}"
        found.append(_with(trial, label, _with_gateway(trial.spec, admission=changed)))
    for wait_s in (queue.max_wait_s / 2, queue.max_wait_s * 2):
        changed_queue = msgspec.structs.replace(queue, max_wait_s=wait_s)
        found.append(_with(trial, f"queue.max_wait {wait_s:g} s", _with_gateway(trial.spec, queue=changed_queue)))
    return found


def ways_out(trial: Trial) -> list[Trial]:
    """Relaxations of a cluster that misses its SLO, cheapest first; each is to be simulated before it is believed."""
    spec = trial.spec
    engine, lengths, slo = spec.pools[0].engine, spec.traffic.lengths, spec.slo
    ways = [
        (f"steps of {tokens} tokens", with_engine(spec, step_tokens=tokens))
        for tokens in (512, 768, 1024, 2048)
        if tokens != engine.step_tokens and tokens >= engine.max_sequences
    ]  # fmt: skip
    patient = msgspec.structs.replace(slo, ttft_s=2 * slo.ttft_s)
    ways.append((f"a TTFT of {patient.ttft_s:g} s", msgspec.structs.replace(spec, slo=patient)))
    if spec.traffic.trace is None and lengths.long_share > 0:
        capped = msgspec.structs.replace(lengths, long_share=0.0)
        ways.append(("long prompts in a lane of their own, elsewhere", _with_traffic(spec, lengths=capped)))
    count = len(spec.pools[0].instances)
    for more in sorted({1, -(-count // 4), -(-count // 2), count}):
        grown = with_instances(spec, count + more)
        ways.append((f"{count + more} instances instead of {count}", grown))
        if engine.step_tokens > FINE_STEP_TOKENS >= engine.max_sequences:
            finer = with_engine(grown, step_tokens=FINE_STEP_TOKENS)
            ways.append((f"{count + more} instances, steps of {FINE_STEP_TOKENS} tokens", finer))
    return [_with(trial, name, changed) for name, changed in ways]


def with_engine(spec: ClusterSpec, **settings: object) -> ClusterSpec:
    """`spec` with settings of every pool's engine."""
    pools = [
        msgspec.structs.replace(pool, engine=msgspec.structs.replace(pool.engine, **settings)) for pool in spec.pools
    ]  # fmt: skip
    return msgspec.structs.replace(spec, pools=pools)


def with_instances(spec: ClusterSpec, count: int) -> ClusterSpec:
    """`spec` whose first pool has `count` instances; those it lacks are like its own."""
    pool = spec.pools[0]
    more = [InstanceSpec(url=f"http://added-{i}:8000") for i in range(count - len(pool.instances))]
    grown = msgspec.structs.replace(pool, instances=[*pool.instances, *more][:count])
    return msgspec.structs.replace(spec, pools=[grown, *spec.pools[1:]])


def _with(trial: Trial, name: str, spec: ClusterSpec) -> Trial:
    return msgspec.structs.replace(trial, name=name, spec=spec)


def _with_gateway(spec: ClusterSpec, **settings: object) -> ClusterSpec:
    return msgspec.structs.replace(spec, gateway=msgspec.structs.replace(spec.gateway, **settings))


def _with_traffic(spec: ClusterSpec, **settings: object) -> ClusterSpec:
    traffic: TrafficSpec = msgspec.structs.replace(spec.traffic, **settings)
    return msgspec.structs.replace(spec, traffic=traffic)
