"""A histogram cheap enough for every chunk of every stream: one bisection and two additions."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

PROMISED_S: Final = (0.05, 0.8)
"""The default SLO's ITL and TTFT, so that what was promised is counted exactly."""
BOUNDS_S: Final = tuple(sorted([*(round(10 ** (step / 5 - 3), 5) for step in range(27)), *PROMISED_S]))
"""Upper bounds, five a decade, 1 ms to 158 s, and the promised ones between them."""


class Buckets:
    """Durations in seconds, counted by log-spaced bucket."""

    __slots__ = ("counts", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.total_s = 0.0

    def add(self, duration_s: float) -> None:
        self.counts[bisect_left(BOUNDS_S, duration_s)] += 1
        self.total_s += duration_s

    def add_zeros(self, count: int) -> None:
        """`count` durations of nothing: chunks that came in one read with the one before."""
        self.counts[0] += count

    @property
    def count(self) -> int:
        return sum(self.counts)

    def cumulative(self) -> list[tuple[str, int]]:
        """Pairs of upper bound and count at or below it, as Prometheus wants them."""
        pairs: list[tuple[str, int]] = []
        running = 0
        for bound, count in zip(BOUNDS_S, self.counts, strict=False):
            running += count
            pairs.append((f"{bound:g}", running))
        pairs.append(("+Inf", running + self.counts[-1]))
        return pairs
