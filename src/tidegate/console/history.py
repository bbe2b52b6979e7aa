"""The last 15 minutes of the whole gateway, one point a second, in arrays that never grow.

In: the gateway's counters, which only rise. Out: rates, and quantiles of what came in the last ten seconds.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from typing import Final

from tidegate.errors import Outcome
from tidegate.gateway.shell import Gateway
from tidegate.observe.buckets import BOUNDS_S
from tidegate.observe.rules import OURS

POINTS: Final = 900
"""15 minutes at one a second."""
QUANTILE_POINTS: Final = 10
"""Quantiles are of this many seconds: fewer requests than that say little."""
DIGITS: Final = 4
COLUMNS: Final = (
    "completed", "refused", "turned_away", "failed", "cancelled",
    "ttft_p50_s", "ttft_p99_s", "gap_p99_s", "kept", "queued", "in_flight",
    "prompt_tokens", "output_tokens", "kv_mean", "kv_max",
)  # fmt: skip
"""The first five and the tokens per second. `refused` was for want of room, `turned_away` the client's own doing (a bad
request, a spent budget); `kept` is the share of first tokens inside the SLO."""
REFUSED: Final = (*OURS, Outcome.DRAINING)


def kind_of(outcome: Outcome) -> str:
    """Which of the first five columns an outcome counts under."""
    if outcome.group == "rejected":
        return "refused" if outcome in REFUSED else "turned_away"
    return "failed" if outcome.group == "error" else outcome.group


KINDS: Final = {outcome: kind_of(outcome) for outcome in Outcome}


class Totals:
    """The gateway's counters at one moment, over all models."""

    __slots__ = ("at_s", "gap", "outcomes", "output_tokens", "prompt_tokens", "ttft")

    def __init__(self, gateway: Gateway, at_s: float) -> None:
        meters = gateway.meters
        each = list(meters.by_model.values())
        self.at_s = at_s
        self.outcomes = {
            outcome: meters.unopened[outcome] + sum(model.count_of(outcome) for model in each) for outcome in Outcome
        }
        self.ttft = _added([model.ttft.counts for model in each])
        self.gap = _added([model.gap.counts for model in each])
        self.prompt_tokens = sum(model.prompt_tokens for model in each)
        self.output_tokens = sum(model.output_tokens for model in each)

    def kinds(self) -> list[int]:
        """Requests by kind, in the columns' order."""
        found = dict.fromkeys(COLUMNS[:5], 0)
        for outcome, count in self.outcomes.items():
            found[KINDS[outcome]] += count
        return list(found.values())


class History:
    """Columns of points, oldest first when read."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._columns = {name: array("f", [math.nan]) * POINTS for name in COLUMNS}
        self._taken = 0
        self._inside = bisect_right(BOUNDS_S, gateway.spec.slo.ttft_s * (1 + 1e-9))
        self._recent: deque[Totals] = deque(maxlen=QUANTILE_POINTS + 1)

    @property
    def totals(self) -> Totals | None:
        """The latest counters."""
        return self._recent[-1] if self._recent else None

    def take(self, now: float) -> list[float | None]:
        """Takes a point and returns it, in the columns' order; None is unknown."""
        totals = Totals(self._gateway, now)
        last = self._recent[-1] if self._recent else totals
        self._recent.append(totals)
        point = [*self._rates(last, totals), *self._latencies(totals), *self._held(), *self._work(last, totals)]
        for name, value in zip(COLUMNS, point, strict=True):
            self._columns[name][self._taken % POINTS] = value
        self._taken += 1
        return [_plain(value) for value in point]

    def columns(self) -> dict[str, list[float | None]]:
        """Everything kept."""
        size, split = min(self._taken, POINTS), self._taken % POINTS if self._taken > POINTS else 0
        return {
            name: [_plain(value) for value in (*column[split:size], *column[:split])]
            for name, column in self._columns.items()
        }

    def _rates(self, last: Totals, totals: Totals) -> list[float]:
        return [_rate(last, totals, late - early) for early, late in zip(last.kinds(), totals.kinds(), strict=True)]

    def _latencies(self, totals: Totals) -> list[float]:
        ttft = _risen(self._recent[0].ttft, totals.ttft)
        gaps = _risen(self._recent[0].gap, totals.gap)
        seen = sum(ttft)
        kept = sum(ttft[: self._inside]) / seen if seen else math.nan
        return [quantile(ttft, 0.5), quantile(ttft, 0.99), quantile(gaps, 0.99), kept]

    def _held(self) -> list[float]:
        gate = self._gateway.gate
        return [float(gate.queued), float(gate.in_flight)]

    def _work(self, last: Totals, totals: Totals) -> list[float]:
        used = [i.sample.kv_used_fraction for i in self._gateway.gate.instances if i.ready and i.sample is not None]
        known = [share for share in used if share is not None]
        return [
            _rate(last, totals, totals.prompt_tokens - last.prompt_tokens),
            _rate(last, totals, totals.output_tokens - last.output_tokens),
            sum(known) / len(known) if known else math.nan,
            max(known, default=math.nan),
        ]


def quantile(counts: Sequence[int], share: float) -> float:
    """The quantile of a histogram in seconds, straight inside a bucket; NaN when it is empty."""
    wanted = share * sum(counts)
    if not wanted:
        return math.nan
    below = 0
    for number, count in enumerate(counts):
        if below + count >= wanted and count:
            if number == len(BOUNDS_S):
                return BOUNDS_S[-1]
            low = BOUNDS_S[number - 1] if number else 0.0
            return low + (BOUNDS_S[number] - low) * (wanted - below) / count
        below += count
    return BOUNDS_S[-1]


def _added(each: list[list[int]]) -> list[int]:
    return [sum(column) for column in zip(*each, strict=True)]


def _risen(before: list[int], after: list[int]) -> list[int]:
    return [late - early for early, late in zip(before, after, strict=True)]


def _rate(last: Totals, totals: Totals, difference: int) -> float:
    passed_s = totals.at_s - last.at_s
    return difference / passed_s if passed_s > 0 else 0.0


def _plain(value: float) -> float | None:
    """For JSON: unknown as None, and no more digits than anybody reads."""
    return None if math.isnan(value) else float(f"{value:.{DIGITS}g}")
