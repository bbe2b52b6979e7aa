"""Every refusal the gate can give: outcome, status, machine-readable code and one sentence (design.md §4.5).

429 means "this cluster has no room now", 503 "nobody can serve it now", 502 and 504 "the engine failed". All of
these are retryable; `retry_after_s` is measured where a drain rate is known.
"""

from __future__ import annotations

import math

from tidegate.errors import Outcome
from tidegate.policy.limit import CONCURRENT, Shortage
from tidegate.policy.ticket import Refusal


def unknown_model(model: str, served: list[str]) -> Refusal:
    """404, not retryable: no pool has that model."""
    message = f"The model `{model}` does not exist. Served here: {', '.join(served)}."
    return Refusal(Outcome.UNKNOWN_MODEL, 404, "model_not_found", message, False)


def limited(tenant: str, shortage: Shortage) -> Refusal:
    """429: a limit of the tenant. Not retryable where a budget is used up: before `retry_after_s` no try helps."""
    what, code = shortage.limit.replace("_", " "), f"limit_{shortage.limit}"
    if shortage.limit == CONCURRENT:
        message = f"Tenant `{tenant}` has {shortage.allowed:.0f} requests open, which is its limit."
        return Refusal(Outcome.LIMITED, 429, code, message, True, 1.0)
    if shortage.wait_s < 0.0:
        message = f"The request needs more {what} than tenant `{tenant}` may use at once ({shortage.allowed:.0f})."
        return Refusal(Outcome.LIMITED, 429, code, message, False)
    wait_s = float(math.ceil(shortage.wait_s))
    message = f"Tenant `{tenant}` has used its {shortage.allowed:.0f} {what} a minute. There is room in {wait_s:.0f} s."
    return Refusal(Outcome.LIMITED, 429, code, message, False, wait_s)


def queue_full(bound: str, retry_after_s: float) -> Refusal:
    """429: the queue is at its bound (`bound` says which)."""
    message = f"The cluster is busy and its queue is full ({bound}). Try again in {retry_after_s:.0f} s."
    return Refusal(Outcome.QUEUE_FULL, 429, "queue_full", message, True, retry_after_s)


def queue_timeout(waited_s: float, retry_after_s: float) -> Refusal:
    """429: no room came in time."""
    message = f"The cluster is busy; no room came within {waited_s:.2g} s. Try again in {retry_after_s:.0f} s."
    return Refusal(Outcome.QUEUE_TIMEOUT, 429, "queue_timeout", message, True, retry_after_s)


def overloaded(retry_after_s: float) -> Refusal:
    """429 at once: what waits already takes longer than the SLO allows."""
    message = f"The cluster is busy; a first token would come too late. Try again in {retry_after_s:.0f} s."
    return Refusal(Outcome.OVERLOADED, 429, "overloaded", message, True, retry_after_s)


def no_instance(model: str) -> Refusal:
    """503: the pool has no ready instance."""
    message = f"No instance that serves `{model}` is ready. Try again shortly."
    return Refusal(Outcome.NO_INSTANCE, 503, "no_instance", message, True, 2.0)


def draining() -> Refusal:
    """503: this gateway is stopping."""
    message = "This gateway is stopping and takes no new requests. Try again: another one answers."
    return Refusal(Outcome.DRAINING, 503, "draining", message, True, 1.0)


def unreachable(instance: str, cause: str) -> Refusal:
    """502: the engine broke before the first token and no other attempt was possible."""
    message = f"Instance {instance} failed before its first token ({cause})."
    return Refusal(Outcome.ENGINE_UNREACHABLE, 502, "engine_unreachable", message, True, 1.0)


def engine_timeout(instance: str, waited_s: float) -> Refusal:
    """504: no first token in time."""
    message = f"Instance {instance} sent no first token within {waited_s:.0f} s."
    return Refusal(Outcome.ENGINE_TIMEOUT, 504, "engine_timeout", message, True, 1.0)


def stream_broken(instance: str, cause: str) -> Refusal:
    """In-band, after the first token: the stream cannot go on."""
    message = f"The stream from instance {instance} ended early ({cause}); the text so far is incomplete."
    return Refusal(Outcome.STREAM_BROKEN, 502, "stream_broken", message, True)
