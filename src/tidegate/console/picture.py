"""The gateway at this moment as plain values: what the page, `tidegate status` and `tidegate top` show."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from tidegate import __version__
from tidegate.console.history import KINDS
from tidegate.gateway.shell import Gateway
from tidegate.policy import breaker, lifecycle
from tidegate.policy.ledger import Instance

TENANTS_SHOWN: Final = 50
MINUTE_POINTS: Final = 60
FRESH_S: Final = 2.0
"""Ages up to this are told as 0, so that a row changes only when something does."""
ROW: Final = ("state", "kv_used", "running", "waiting", "in_flight", "age_s", "claimed")
"""Of an instance: number of its state, shares 0 to 1, requests, seconds; `claimed` is the share of KV blocks in use or
spoken for by the ledger. None is unknown."""

STATES: Final = (*lifecycle.STATE_NAMES, "tripped")
"""An instance's life, and one more for those that are ready but for their fault breaker."""
TRIPPED: Final = len(lifecycle.STATE_NAMES)

GONE: Final = (lifecycle.LAUNCHING, lifecycle.EJECTED, lifecycle.STOPPED)

Row = list[float | None]


def shown(instance: Instance) -> int:
    """Number of the state that the console shows, in `STATES`."""
    return TRIPPED if instance.ready and instance.breaker.state != breaker.CLOSED else instance.state


def static(gateway: Gateway) -> dict[str, Any]:
    """What does not change while the gateway runs."""
    spec = gateway.spec
    return {
        "version": __version__,
        "slo": {"ttft_s": spec.slo.ttft_s, "itl_s": spec.slo.itl_s},
        "queue_max": spec.gateway.queue.max_requests,
        "kv_high": spec.gateway.admission.kv_high,
        "states": STATES,
        "row": ROW,
        "kinds": {outcome.value: kind for outcome, kind in KINDS.items()},
        "instances": [{"name": i.name, "model": i.model, "url": i.url, "kind": i.kind} for i in gateway.gate.instances],
    }


def rows(gateway: Gateway, now: float) -> list[Row]:
    """All instances, in the spec's order."""
    return [_row(instance, now) for instance in gateway.gate.instances]


def _row(instance: Instance, now: float) -> Row:
    sample = instance.sample
    claimed = instance.active_blocks(now) / instance.capacity_blocks if instance.capacity_blocks > 0 else None
    if sample is None or instance.state in GONE:  # what a dead engine last said is not how it is
        return [shown(instance), None, None, None, instance.in_flight, None, _short(claimed)]
    age_s = int(now - instance.sampled_s) if now - instance.sampled_s > FRESH_S else 0
    used = _short(sample.kv_used_fraction)
    return [shown(instance), used, sample.running, sample.waiting, instance.in_flight, age_s, _short(claimed)]


def _short(share: float | None) -> float | None:
    return None if share is None else round(share, 3)


class TenantRates:
    """Tokens a second by tenant over the last minute, and how their limits stand."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._past: deque[tuple[float, dict[str, tuple[int, ...]]]] = deque(maxlen=MINUTE_POINTS + 1)

    def take(self, now: float) -> list[dict[str, Any]]:
        """The busiest tenants first."""
        totals = {name: tuple(counts) for name, counts in self._gateway.meters.tenant_tokens.items()}
        self._past.append((now, totals))
        since_s, before = self._past[0]
        found = [self._tenant(name, counts, before.get(name, counts), now - since_s) for name, counts in totals.items()]
        found.sort(key=lambda one: (-one["tokens_s"], one["name"]))
        return [{**one, "limits": self._limits(one["name"], now)} for one in found[:TENANTS_SHOWN]]

    def _tenant(self, name: str, counts: tuple[int, ...], before: tuple[int, ...], passed_s: float) -> dict[str, Any]:
        rates = [(late - early) / passed_s if passed_s > 0 else 0.0 for early, late in zip(before, counts, strict=True)]
        return {
            "name": name,
            "requests": counts[0],
            "prompt_tokens": counts[1],
            "output_tokens": counts[2],
            "requests_s": round(rates[0], 2),
            "tokens_s": round(rates[1] + rates[2], 1),
        }

    def _limits(self, tenant: str, now: float) -> list[dict[str, Any]]:
        standings = self._gateway.gate.limits.standings(tenant, "", now)
        return [{"limit": one.limit, "per_minute": one.per_minute, "left": one.remaining} for one in standings]
