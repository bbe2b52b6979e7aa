"""A coarse timer wheel: one loop timer for every time-out of every connection.

Re-arming costs an attribute write on the item; the wheel looks at an item only when its slot comes round and asks
it when to look again. Precision is one tick, which is what idle and slow-head time-outs need.
"""

from __future__ import annotations

from typing import Final, Protocol

SLOTS: Final = 128


class Timed(Protocol):
    """Something with a deadline."""

    wheel_slot: int
    """Where the wheel keeps it; −1 when it does not. The wheel's own field."""

    def on_tick(self, tick: int) -> int:
        """Its time may have come. Returns the ticks until the next look (≥ 1), or 0 to be let go."""
        ...


class TimerWheel:
    """Items by the tick at which they want to be looked at. Add, drop and fire are O(1) an item."""

    __slots__ = ("_slots", "tick")

    def __init__(self) -> None:
        self.tick = 0
        self._slots: list[set[Timed]] = [set() for _ in range(SLOTS)]

    def add(self, item: Timed, ticks: int) -> None:
        """Looks at `item` after `ticks`; longer than the wheel is looked at early and asked again."""
        slot = (self.tick + max(1, min(ticks, SLOTS - 1))) % SLOTS
        item.wheel_slot = slot
        self._slots[slot].add(item)

    def drop(self, item: Timed) -> None:
        if item.wheel_slot >= 0:
            self._slots[item.wheel_slot].discard(item)
            item.wheel_slot = -1

    def advance(self) -> None:
        """One tick on: fires the items of the slot that came round."""
        self.tick += 1
        slot = self.tick % SLOTS
        due = self._slots[slot]
        if not due:
            return
        self._slots[slot] = set()
        for item in due:
            item.wheel_slot = -1
            again = item.on_tick(self.tick)
            if again > 0:
                self.add(item, again)

    def __len__(self) -> int:
        return sum(map(len, self._slots))
