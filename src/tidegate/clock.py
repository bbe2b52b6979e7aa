"""Clocks: the one place where monotonic time is read.

In: nothing. Out: `Clock` (a protocol), `SystemClock`, `ManualClock`. Decisions never hold a clock; shells read
one and pass `now` (float seconds, monotonic, no epoch) down.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Anything that tells monotonic seconds."""

    def now(self) -> float:
        """Seconds since an arbitrary fixed point; never goes back."""
        ...


class SystemClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock that moves only when told, for tests and replays."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def now(self) -> float:
        return self._now_s

    def advance(self, seconds: float) -> float:
        """Moves on by `seconds` (≥ 0) and returns the new time."""
        return self.advance_to(self._now_s + seconds)

    def advance_to(self, instant_s: float) -> float:
        """Moves on to exactly `instant_s`, which must not lie in the past."""
        if not instant_s >= self._now_s:
            raise ValueError(f"a monotonic clock cannot go back (from {self._now_s} s to {instant_s} s)")
        self._now_s = instant_s
        return self._now_s
