"""The timer wheel."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidegate.transport.wheel import SLOTS, TimerWheel


class Item:
    """Wants to be looked at once, `delay` ticks from now."""

    def __init__(self, delay: int) -> None:
        self.wheel_slot = -1
        self.due = delay
        self.fired = 0

    def on_tick(self, tick: int) -> int:
        if tick < self.due:
            return self.due - tick
        self.fired = tick
        return 0


@given(delays=st.lists(st.integers(1, 3 * SLOTS), max_size=50))
def test_everything_fires_once_and_in_time(delays: list[int]) -> None:
    wheel = TimerWheel()
    items = [Item(delay) for delay in delays]
    for item in items:
        wheel.add(item, item.due)
    for _ in range(3 * SLOTS + 1):
        wheel.advance()
    assert [item.fired for item in items] == delays
    assert len(wheel) == 0


def test_what_is_dropped_does_not_fire() -> None:
    wheel = TimerWheel()
    item = Item(3)
    wheel.add(item, 3)
    wheel.drop(item)
    for _ in range(10):
        wheel.advance()
    assert item.fired == 0
