"""Inter-token gaps of one instance, O(1) per step instead of one record per token.

While sequences decode, each of them gets one token a step, so every one of their gaps is a step's duration. The log
therefore counts a step once per histogram, weighted by who decodes, and a sequence reads its own gaps off two
running values when it leaves: how many steps exceeded the SLO since it entered, and the longest step since then (a
stack of steps each longer than all later ones). A gap that a preemption tore open is added on its own. A sequence
aborted during a step is counted that step's gap, though nobody reads its last token.
"""

from __future__ import annotations

from bisect import bisect_left

from tidegate.traffic.histogram import bucket_us
from tidegate.twin.sequence import Sequence


class StepLog:
    """`groups` are histograms (`Histogram.counts`) by `Sequence.group`; several instances may share them."""

    __slots__ = ("_active", "_active_groups", "_groups", "_long_s", "_long_ticks", "_over", "_slo_s")

    def __init__(self, groups: list[dict[int, int]], slo_itl_s: float) -> None:
        self._groups = groups
        self._slo_s = slo_itl_s
        self._active: list[int] = [0] * len(groups)
        """Decoding sequences by group."""
        self._active_groups: list[int] = []
        self._over = 0
        """Steps so far that took longer than the SLO."""
        self._long_ticks: list[int] = []
        self._long_s: list[float] = []

    def enter(self, seq: Sequence, now: float, tick: int) -> None:
        """`seq` begins to decode: its newest token came at `now`, and steps from `tick` on are gaps of its own."""
        while seq.group >= len(self._active):
            self._active.append(0)
        self._active[seq.group] += 1
        if self._active[seq.group] == 1:
            self._active_groups.append(seq.group)
        seq.over_mark = self._over
        seq.log_tick = tick
        if seq.last_token_s >= 0.0:
            self.gap(seq, now - seq.last_token_s)

    def leave(self, seq: Sequence, tick: int) -> None:
        """`seq` stops decoding after steps `seq.log_tick` … `tick` − 1."""
        self._active[seq.group] -= 1
        if self._active[seq.group] == 0:
            self._active_groups.remove(seq.group)
        seq.gap_count += tick - seq.log_tick
        seq.gaps_over_slo += self._over - seq.over_mark
        seq.longest_gap_s = max(seq.longest_gap_s, self._longest_since(seq.log_tick))
        if not self._active_groups:
            self._long_ticks.clear()
            self._long_s.clear()

    def gap(self, seq: Sequence, gap_s: float) -> None:
        """One gap of `seq` that no step's duration tells."""
        counts = self._groups[seq.group]
        bucket = bucket_us(gap_s)
        counts[bucket] = counts.get(bucket, 0) + 1
        seq.gap_count += 1
        seq.longest_gap_s = max(seq.longest_gap_s, gap_s)
        if gap_s > self._slo_s:
            seq.gaps_over_slo += 1

    def steps(self, base_s: float, rise_s: float, done: int, count: int, tick: int) -> None:
        """Steps `tick` … `tick` + `count` − 1 took `base_s` + `rise_s` × (`done`, `done` + 1, …); `rise_s` ≥ 0."""
        last_s = base_s + rise_s * (done + count - 1)
        while self._long_s and self._long_s[-1] <= last_s:
            self._long_s.pop()
            self._long_ticks.pop()
        self._long_s.append(last_s)
        self._long_ticks.append(tick + count - 1)
        if last_s > self._slo_s:
            self._over += count - self._within(base_s, rise_s, done, count)
        bucket = bucket_us(last_s)
        if count == 1 or bucket_us(base_s + rise_s * done) == bucket:
            self._count(bucket, count)
        else:
            self._spread(base_s, rise_s, done, done + count)

    def _spread(self, base_s: float, rise_s: float, done: int, end: int) -> None:
        """Counts a run of steps that crosses bucket borders, bucket by bucket."""
        while done < end:
            bucket = bucket_us(base_s + rise_s * done)
            upto = min(end, max(done + 1, int((bucket / 1e6 - base_s) / rise_s)))
            while upto < end and bucket_us(base_s + rise_s * upto) == bucket:
                upto += 1
            while bucket_us(base_s + rise_s * (upto - 1)) != bucket:
                upto -= 1
            self._count(bucket, upto - done)
            done = upto

    def _count(self, bucket: int, steps: int) -> None:
        for group in self._active_groups:
            counts = self._groups[group]
            counts[bucket] = counts.get(bucket, 0) + steps * self._active[group]

    def _within(self, base_s: float, rise_s: float, done: int, count: int) -> int:
        """How many of the steps are within the SLO, which the last is not; they come first."""
        low, high = done, done + count - 1
        while low < high:
            middle = (low + high) // 2
            if base_s + rise_s * middle > self._slo_s:
                high = middle
            else:
                low = middle + 1
        return low - done

    def _longest_since(self, tick: int) -> float:
        place = bisect_left(self._long_ticks, tick)
        return self._long_s[place] if place < len(self._long_s) else 0.0
