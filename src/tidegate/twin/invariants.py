"""Invariants 1 and 5 of a simulated cluster, checked after an event; for tests, a whole scan each time."""

from __future__ import annotations

from tidegate.policy.gate import Gate
from tidegate.twin.instance import Instance


def check_requests(arrived: int, ended: int, gates: list[Gate], now: float) -> None:
    """Everybody who arrived ended, is at an engine, or waits. Raises `RuntimeError` where somebody is missing."""
    alive = sum(gate.in_flight + gate.queued for gate in gates)
    if arrived != ended + alive:
        raise RuntimeError(f"at {now} s {arrived} requests arrived, {ended} ended and {alive} are under way")


def check_blocks(instance: Instance, now: float) -> None:
    """Held and free KV blocks are all there are. Raises `RuntimeError` when blocks were lost, doubled or lent twice."""
    pool = instance.pool
    free = sum(run.blocks for run in pool.queue())
    if free != pool.free or not 0 <= pool.free <= pool.total:
        raise RuntimeError(
            f"{instance.name} at {now} s: {free} blocks queue as free, {pool.free} of {pool.total} counted"
        )
    if instance.idle and pool.free != pool.total:
        raise RuntimeError(f"{instance.name} at {now} s: idle, and {pool.used} blocks are held")
