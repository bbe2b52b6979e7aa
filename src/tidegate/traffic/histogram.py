"""A full-resolution histogram of durations that merges exactly.

Log-linear: whole microseconds up to 1,024 µs are kept exactly; above that every power of two is cut into
512 equal buckets. A bucket is named by its upper bound in microseconds, so a histogram is a plain
`dict[int, int]` that can be written, read and summed. A percentile is the upper bound of the bucket that
holds the nearest rank: never below the true value and at most `RELATIVE_ERROR` (or one microsecond) above it.
Percentiles are taken from merged histograms; they are never averaged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

RELATIVE_ERROR: Final = 1 / 512
_EXACT_BITS: Final = 10


def bucket_us(duration_s: float) -> int:
    """Upper bound, in µs, of the bucket for a duration in seconds; a negative one counts as zero."""
    # 0.999 and not a true ceiling: 50 ms is 50000.000000000007 µs in binary, and belongs in 50000.
    whole = int(duration_s * 1e6 + 0.999) if duration_s > 0.0 else 0
    shift = whole.bit_length() - _EXACT_BITS
    if shift <= 0:
        return whole
    return -(-whole >> shift) << shift


class Histogram:
    """Counts of durations by bucket."""

    __slots__ = ("counts", "total")

    def __init__(self, counts: Mapping[int, int] | None = None) -> None:
        """From another histogram's `counts`, which are copied."""
        self.counts: dict[int, int] = dict(counts) if counts is not None else {}
        self.total = sum(self.counts.values())

    def record(self, duration_s: float, times: int = 1) -> None:
        """Counts one duration in seconds, `times` times."""
        bucket = bucket_us(duration_s)
        self.counts[bucket] = self.counts.get(bucket, 0) + times
        self.total += times

    def record_all(self, durations_s: Iterable[float]) -> None:
        """Counts every duration."""
        counts = self.counts
        added = 0
        for duration_s in durations_s:
            bucket = bucket_us(duration_s)
            counts[bucket] = counts.get(bucket, 0) + 1
            added += 1
        self.total += added

    def merge(self, counts: Mapping[int, int]) -> None:
        """Adds another histogram's counts to this one; exact."""
        for bucket, count in counts.items():
            self.counts[bucket] = self.counts.get(bucket, 0) + count
            self.total += count

    def percentile_s(self, percent: float) -> float | None:
        """The nearest-rank percentile in seconds (`percent` in (0, 100]); `None` when nothing was counted."""
        if not 0.0 < percent <= 100.0:
            raise ValueError(f"a percentile lies in (0, 100], not at {percent}")
        # Rounded before the ceiling: 99.9 % of 1,000 is rank 999, though the product is 999.0000000000001.
        rank = -int(-round(self.total * percent / 100.0, 6) // 1)
        seen = 0
        for bucket in sorted(self.counts):
            seen += self.counts[bucket]
            if self.counts[bucket] and seen >= rank:
                return bucket / 1e6
        return None

    def maximum_s(self) -> float | None:
        """The largest duration in seconds, to the same resolution; `None` when nothing was counted."""
        return self.percentile_s(100.0)

    def share_above(self, limit_s: float) -> float | None:
        """Share of durations in buckets above the bucket of `limit_s`; `None` when nothing was counted."""
        if self.total == 0:
            return None
        limit = bucket_us(limit_s)
        return sum(count for bucket, count in self.counts.items() if bucket > limit) / self.total
