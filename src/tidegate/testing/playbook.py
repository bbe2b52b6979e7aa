"""Builds gates and reads their answers, for playbooks on a manual clock."""

from __future__ import annotations

from typing import Any

from tidegate.policy.gate import Gate, describe
from tidegate.policy.ticket import Attempt, Command, Head, Refuse, Settle, Ticket
from tidegate.spec import (
    AdmissionSpec,
    BreakerSpec,
    ClusterSpec,
    GatewaySpec,
    InstanceSpec,
    PoolSpec,
    QueueSpec,
    RetrySpec,
    TenantSpec,
    TimeoutsSpec,
)


def gate(
    instances: int = 2,
    *,
    admission: dict[str, Any] | None = None,
    queue: dict[str, Any] | None = None,
    retry: dict[str, Any] | None = None,
    timeouts: dict[str, Any] | None = None,
    tenants: list[TenantSpec] | None = None,
    breaker: dict[str, Any] | None = None,
    alive: bool = True,
) -> Gate:
    """A gate over one pool `m` of `instances` instances `i1`, `i2`, …, all ready at time 0 unless told."""
    spec = ClusterSpec(
        pools=[
            PoolSpec(
                model="m",
                instances=[
                    InstanceSpec(url=f"http://127.0.0.1:{9000 + n}", name=f"i{n}") for n in range(1, instances + 1)
                ],
            )
        ],
        gateway=GatewaySpec(
            admission=AdmissionSpec(**(admission or {})),
            queue=QueueSpec(**(queue or {})),
            retry=RetrySpec(**(retry or {})),
            timeouts=TimeoutsSpec(**(timeouts or {})),
            breaker=BreakerSpec(**(breaker or {})),
        ),
        tenants=tenants or [],
    )
    made = Gate(spec)
    if alive:
        for instance in made.instances:
            made.probed(instance, True, 0.0)
    return made


def head(
    prompt_tokens: int = 100, max_tokens: int = 50, *, model: str = "m", priority: int = 2, body: int = 400
) -> Head:
    """A request's head with exact token counts."""
    return Head(
        model, prompt_bytes=body, body_bytes=body, max_tokens=max_tokens, prompt_tokens=prompt_tokens, priority=priority
    )


def words(commands: list[Command]) -> list[str]:
    """Commands as `describe` says them."""
    return [describe(command) for command in commands]


def attempt_of(commands: list[Command]) -> Attempt:
    """The one attempt among `commands`."""
    (found,) = (c for c in commands if isinstance(c, Attempt))
    return found


def refusal_of(commands: list[Command]) -> Refuse:
    """The one refusal among `commands`."""
    (found,) = (c for c in commands if isinstance(c, Refuse))
    return found


def settled(commands: list[Command]) -> list[Ticket]:
    """The tickets that `commands` settle."""
    return [c.ticket for c in commands if isinstance(c, Settle)]


def at_rest(made: Gate) -> bool:
    """Invariant 4: nothing is held anywhere."""
    return (
        made.in_flight == 0
        and made.queued == 0
        and all(pool.line.bytes == 0 for pool in made.pools.values())
        and all(i.in_flight == 0 and i.own_blocks == 0 and i.prefill_tokens == 0 for i in made.instances)
    )
