"""What happens to instances during a simulated run, at given times.

    die      the process is gone: streams break, connections are refused
    restart  it dies, and serves again, with an empty cache, after a cold start
    slow     every step takes `factor` times as long, for a while (a throttled or shared GPU)

Written `KIND@TIME:INSTANCE[:MORE]`, instances counted from 0: `die@2m:1`, `restart@2m:1:90s`, `slow@2m:1:1.5:60s`.
"""

from __future__ import annotations

from typing import Final

from tidegate.errors import BadInputError
from tidegate.units import parse_duration_s

DIE: Final = "die"
RESTART: Final = "restart"
SLOW: Final = "slow"
FOREVER_S: Final = 1e18
PARTS: Final = {DIE: 1, RESTART: 2, SLOW: 3}
"""Values after the time, by kind."""


class Fault:
    """One fault. `lasts_s` is the cold start of a restart and the length of a slow spell."""

    __slots__ = ("at_s", "factor", "instance", "kind", "lasts_s")

    def __init__(self, kind: str, at_s: float, instance: int, factor: float = 1.0, lasts_s: float = FOREVER_S) -> None:
        self.kind = kind
        self.at_s = at_s
        self.instance = instance
        self.factor = factor
        self.lasts_s = lasts_s


def parse_fault(text: str) -> Fault:
    """Reads one. Raises `BadInputError` for anything else."""
    kind, at, rest = text.partition("@")
    parts = rest.split(":")
    hint = "write die@2m:1, restart@2m:1:90s or slow@2m:1:1.5:60s (kind, time, instance counted from 0)"
    if not at or kind not in PARTS or len(parts) != 1 + PARTS[kind]:
        raise BadInputError(f"{text!r} is no fault", hint=hint)
    try:
        at_s, instance = parse_duration_s(parts[0]), int(parts[1])
        factor = float(parts[2]) if kind == SLOW else 1.0
        lasts_s = FOREVER_S if kind == DIE else parse_duration_s(parts[-1])
    except ValueError as exc:
        raise BadInputError(f"{text!r} is no fault: {exc}", hint=hint) from exc
    if instance < 0 or factor <= 0.0:
        raise BadInputError(f"{text!r} names no instance, or a factor that is not above 0", hint=hint)
    return Fault(kind, at_s, instance, factor, lasts_s)


def check_faults(faults: list[Fault], instances: int) -> None:
    """Raises `BadInputError` for a fault of an instance that is not there."""
    for fault in faults:
        if fault.instance >= instances:
            raise BadInputError(
                f"a fault hits instance {fault.instance}, and there are {instances}", hint="they are counted from 0"
            )
