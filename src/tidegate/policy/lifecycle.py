"""An instance's life as the gateway sees it (design.md §5).

An instance is `LAUNCHING` until it first answers its health probe, then `READY`. A refused connection, on a probe or
on live traffic, ejects it at once: a refused connection means that no process listens, while a time-out only means
that one is busy and changes nothing. An ejected instance comes back with its next healthy answer. `DRAINING` takes
no new work and ends in `STOPPED`. Only `READY` receives requests.
"""

from __future__ import annotations

from typing import Final

LAUNCHING: Final = 0
READY: Final = 1
EJECTED: Final = 2
DRAINING: Final = 3
STOPPED: Final = 4

STATE_NAMES: Final = ("launching", "ready", "ejected", "draining", "stopped")

LEGAL: Final = (
    (READY, EJECTED, DRAINING, STOPPED),  # from LAUNCHING
    (EJECTED, DRAINING, STOPPED),  # from READY
    (READY, DRAINING, STOPPED),  # from EJECTED
    (STOPPED,),  # from DRAINING
    (LAUNCHING,),  # from STOPPED
)


def after_probe(state: int, alive: bool) -> int:
    """The state after a health answer (`alive`) or a refused connection (not `alive`)."""
    if state in (LAUNCHING, READY, EJECTED):
        return READY if alive else EJECTED
    return state


def may_move(state: int, target: int) -> bool:
    """Whether the table allows `state` → `target`."""
    return target in LEGAL[state]
