"""What charts draw: figures over time and cumulative distributions, from a run's record.

Latencies lie where the request was *meant* to be sent, gaps where they ended, outcomes where the request was sent.
A bin without data is a hole (`None`), not a zero.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tidegate.errors import Outcome
from tidegate.traffic.figures import itl_divisor
from tidegate.traffic.histogram import Histogram
from tidegate.traffic.record import RunRecord

BINS: Final = 60
REQUESTS_PER_BIN: Final = 6
"""Fewer would make a percentile over time a line of accidents."""
CDF_POINTS: Final = 300
GROUPS: Final = ("completed", "rejected", "error", "cancelled")


class Line(NamedTuple):
    """One percentile over time: bin middles in seconds, values in milliseconds."""

    x_s: list[float]
    y_ms: list[float | None]


class Steps(NamedTuple):
    """A cumulative distribution: value in milliseconds, share of observations at or below it."""

    x_ms: list[float]
    share: list[float]


class Binned:
    """Histograms by time bin over a run's window."""

    def __init__(self, run: RunRecord, most_bins: int = BINS) -> None:
        self.start_s, end_s = run.window_s
        # Bins of whole tenths of a second, so that axis ticks and bin edges meet.
        self.width_s = max(0.1, round((end_s - self.start_s) / max(1, most_bins), 1))
        self.bins = [Histogram() for _ in range(max(1, -int(-(end_s - self.start_s) // self.width_s)))]

    def record(self, at_s: float, duration_s: float) -> None:
        """Counts a duration at a moment; what lies outside the window is left out."""
        number = int((at_s - self.start_s) // self.width_s)
        if 0 <= number < len(self.bins):
            self.bins[number].record(duration_s)

    def middles_s(self) -> list[float]:
        """The bins' middles."""
        return [round(self.start_s + (number + 0.5) * self.width_s, 3) for number in range(len(self.bins))]

    def line(self, percent: float) -> Line:
        """One percentile over time."""
        values = [histogram.percentile_s(percent) for histogram in self.bins]
        return Line(self.middles_s(), [None if value is None else round(value * 1e3, 3) for value in values])


def ttft_over_time(run: RunRecord) -> Binned:
    """TTFT by intended send time."""
    binned = Binned(run, min(BINS, len(run.requests) // REQUESTS_PER_BIN))
    for record in run.requests:
        if record.ttft_s is not None:
            binned.record(record.plan.at_s, record.ttft_s)
    return binned


def itl_over_time(run: RunRecord) -> Binned | None:
    """ITL by the moment each gap ended; `None` for runs that kept no raw gaps."""
    binned = Binned(run)
    seen = False
    for record in run.requests:
        if record.first_token_s is None or not record.gaps_ms:
            continue
        seen = True
        at_s, tokens = record.first_token_s, itl_divisor(record)
        for gap_ms in record.gaps_ms:
            at_s += gap_ms * 1e-3
            binned.record(at_s, gap_ms * 1e-3 / tokens)
    return binned if seen else None


def outcomes_over_time(run: RunRecord) -> tuple[list[float], dict[str, list[int]]]:
    """Requests per bin by outcome group (`GROUPS`), by intended send time."""
    binned = Binned(run)
    counts = {group: [0] * len(binned.bins) for group in GROUPS}
    for record in run.requests:
        number = int((record.plan.at_s - binned.start_s) // binned.width_s)
        if 0 <= number < len(binned.bins):
            counts[record.outcome.group][number] += 1
    return binned.middles_s(), counts


def ttft_cdf(run: RunRecord) -> Steps:
    """Share of *all sent* requests that had their first token within a time: failures keep it below 100 %."""
    histogram = Histogram()
    asked = [record for record in run.requests if record.plan.stream]
    histogram.record_all(r.ttft_s for r in asked if r.ttft_s is not None and r.outcome is Outcome.COMPLETED)
    return _cdf(histogram, len(asked))


def itl_cdf(run: RunRecord) -> Steps:
    """Share of inter-token latencies within a time."""
    histogram = Histogram()
    for record in run.requests:
        tokens = itl_divisor(record)
        histogram.record_all(gap_ms * 1e-3 / tokens for gap_ms in record.gaps_ms)
    if histogram.total == 0:
        histogram = Histogram(run.gaps)
    return _cdf(histogram, histogram.total)


def _cdf(histogram: Histogram, total: int) -> Steps:
    x_ms: list[float] = []
    shares: list[float] = []
    seen = 0
    for bucket in sorted(histogram.counts):
        seen += histogram.counts[bucket]
        # Thinned where many buckets lie within a fraction of a percent; the last is always kept.
        if not shares or seen / total - shares[-1] >= 1 / CDF_POINTS or seen == histogram.total:
            x_ms.append(bucket / 1e3)
            shares.append(round(seen / total, 5))
    return Steps(x_ms, shares)
