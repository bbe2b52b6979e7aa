"""What the instances did in a run: crashes, preemptions, MFU, KV use, cost. Unknown is `None`, never 0.

In: a `RunRecord` whose `instances` were filled from counters. Out: single values for `figures`.
"""

from __future__ import annotations

from tidegate.errors import Outcome
from tidegate.traffic.record import InstanceRecord, RequestRecord, RunRecord

_CRASH_OUTCOMES = (
    Outcome.ENGINE_UNREACHABLE,
    Outcome.ENGINE_ERROR,
    Outcome.STREAM_BROKEN,
    Outcome.TRUNCATED,
)


def _observed_s(run: RunRecord, instance: InstanceRecord) -> float:
    window_s = run.window_s[1] - run.window_s[0]
    return window_s if instance.observed_s is None else instance.observed_s


def exits_per_instance_hour(run: RunRecord) -> float | None:
    hours = sum(_observed_s(run, instance) for instance in run.instances) / 3600
    return sum(instance.exits_unasked for instance in run.instances) / hours if hours > 0 else None


def crash_failed_share(run: RunRecord, measured: list[RequestRecord]) -> float | None:
    """Upper bound: once an instance died, every broken or unreachable request is laid to it."""
    if not run.instances or not measured:
        return None
    if not any(instance.exits_unasked for instance in run.instances):
        return 0.0
    return sum(record.outcome in _CRASH_OUTCOMES for record in measured) / len(measured)


def preemptions(instances: list[InstanceRecord]) -> int | None:
    known = [i.preemptions for i in instances if i.preemptions is not None]
    return sum(known) if known and len(known) == len(instances) else None


def mfu(run: RunRecord) -> float | None:
    done = possible = 0.0
    for instance in run.instances:
        if instance.model_flops is None or instance.peak_flops_per_s is None:
            return None
        done += instance.model_flops
        possible += instance.peak_flops_per_s * _observed_s(run, instance)
    return done / possible if possible > 0 else None


def kv_peak_fraction(instances: list[InstanceRecord]) -> float | None:
    known = [i.kv_peak_fraction for i in instances if i.kv_peak_fraction is not None]
    return max(known) if known else None


def cost_per_million(run: RunRecord, tokens_per_s: float | None, share: float) -> float | None:
    """GPU-hours × price × share ÷ million tokens, as rates: the window's length cancels out."""
    gpus = sum(instance.gpus for instance in run.instances)
    if not gpus or not run.gpu_hour_price or not tokens_per_s:
        return None
    return gpus * run.gpu_hour_price / 3600 * share / tokens_per_s * 1e6
