"""Counts instead of records, for runs whose records would not fit in memory: fifty million requests in a few MiB.

In: ended requests. Out: per phase and length class what `traffic.figures` says of a run (outcomes, goodput, TTFT and
E2E percentiles by the same histogram), and per `SLICE_S` of time how many were sent and how many were served well, so
that the recovery after each pulse shows. Gaps are counted by the engines' step logs, as in every run.
"""

from __future__ import annotations

from typing import Final

from tidegate.errors import Outcome
from tidegate.traffic.gappool import LONG_ABOVE_TOKENS, SHORT_BELOW_TOKENS
from tidegate.traffic.histogram import Histogram, bucket_us
from tidegate.twin.flight import Flight
from tidegate.twin.recorder import Recorder

SLICE_S: Final = 5.0
CLASSES: Final = ("short", "mixed", "long")
OUTCOMES: Final = list(Outcome)
COMPLETED: Final = Outcome.COMPLETED
WITHIN_SLO_SHARE: Final = 0.99


class Cell:
    """Requests of one phase and length class."""

    __slots__ = ("completed", "e2e", "good", "others", "output_tokens", "prompt_tokens", "sent", "ttft")

    def __init__(self) -> None:
        self.sent = 0
        self.completed = 0
        self.good = 0
        """Met every SLO."""
        self.others: list[int] = [0] * len(OUTCOMES)
        """Ended otherwise, by place in `OUTCOMES`."""
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.ttft: dict[int, int] = {}
        self.e2e: dict[int, int] = {}

    def add(self, other: Cell) -> None:
        """Takes another cell's counts in; exact."""
        self.sent += other.sent
        self.completed += other.completed
        self.good += other.good
        self.others = [one + two for one, two in zip(self.others, other.others)]
        self.prompt_tokens += other.prompt_tokens
        self.output_tokens += other.output_tokens
        self.ttft = _merged(self.ttft, other.ttft)
        self.e2e = _merged(self.e2e, other.e2e)

    def outcomes(self) -> dict[str, int]:
        """Counts by outcome, those that occurred."""
        found = {COMPLETED.value: self.completed} if self.completed else {}
        for place, count in enumerate(self.others):
            if count:
                found[OUTCOMES[place].value] = count
        return found

    def goodput_share(self) -> float | None:
        """Share of those sent that met every SLO; None when nothing was sent."""
        return self.good / self.sent if self.sent else None

    def ttft_s(self, percent: float) -> float | None:
        """A percentile of TTFT in seconds, None when no first token came."""
        return Histogram(self.ttft).percentile_s(percent)

    def e2e_s(self, percent: float) -> float | None:
        """A percentile of the time to the end of completed requests, in seconds."""
        return Histogram(self.e2e).percentile_s(percent)


class Tally(Recorder):
    """Counts requests sent in [`start_s`, `end_s`)."""

    __slots__ = ("_itl_slo_s", "_ttft_slo_s", "cells", "end_s", "good_by_slice", "sent_by_slice", "start_s")

    def __init__(self, ttft_slo_s: float, itl_slo_s: float, start_s: float = 0.0, end_s: float = 1e300) -> None:
        self._ttft_slo_s = ttft_slo_s
        self._itl_slo_s = itl_slo_s
        self.start_s = start_s
        self.end_s = end_s
        self.cells: dict[str, list[Cell]] = {}
        """By phase: short, mixed and long prompts."""
        self.sent_by_slice: list[int] = []
        self.good_by_slice: list[int] = []

    def ended(self, flight: Flight, outcome: Outcome, now: float) -> None:
        at_s = flight.at_s
        if at_s < self.start_s or at_s >= self.end_s:
            return
        cell = self._cell(flight)
        cell.sent += 1
        good = False
        if flight.first_s >= 0.0 and flight.stream:
            bucket = bucket_us(flight.first_s - at_s)
            cell.ttft[bucket] = cell.ttft.get(bucket, 0) + 1
        if outcome is COMPLETED:
            cell.completed += 1
            cell.prompt_tokens += flight.prompt_tokens
            cell.output_tokens += flight.output_tokens
            bucket = bucket_us(now - at_s)
            cell.e2e[bucket] = cell.e2e.get(bucket, 0) + 1
            good = self._good(flight, now)
            if good:
                cell.good += 1
        else:
            cell.others[OUTCOMES.index(outcome)] += 1
        self._note(at_s, good)

    def whole(self) -> Cell:
        """All phases and classes together."""
        total = Cell()
        for cells in self.cells.values():
            for cell in cells:
                total.add(cell)
        return total

    def phase(self, name: str) -> Cell:
        """One phase, all classes."""
        total = Cell()
        for cell in self.cells.get(name, []):
            total.add(cell)
        return total

    def merge(self, other: Tally) -> None:
        """Takes in what another window counted; exact."""
        for name, cells in other.cells.items():
            own = self.cells.setdefault(name, [Cell(), Cell(), Cell()])
            for mine, theirs in zip(own, cells):
                mine.add(theirs)
        self._reach(len(other.sent_by_slice))
        for index in range(len(other.sent_by_slice)):
            self.sent_by_slice[index] += other.sent_by_slice[index]
            self.good_by_slice[index] += other.good_by_slice[index]

    def recovery_s(self, pulse_end_s: float, share: float = 0.99) -> float | None:
        """How long after `pulse_end_s` the goodput of a slice is back at `share`; None if that never came."""
        for index in range(int(pulse_end_s / SLICE_S), len(self.sent_by_slice)):
            sent = self.sent_by_slice[index]
            if index * SLICE_S >= pulse_end_s and sent and self.good_by_slice[index] >= share * sent:
                return index * SLICE_S - pulse_end_s
        return None

    def _cell(self, flight: Flight) -> Cell:
        cells = self.cells.get(flight.phase)
        if cells is None:
            cells = self.cells[flight.phase] = [Cell(), Cell(), Cell()]
        tokens = flight.planned_prompt_tokens
        return cells[0 if tokens < SHORT_BELOW_TOKENS else 2 if tokens > LONG_ABOVE_TOKENS else 1]

    def _good(self, flight: Flight, now: float) -> bool:
        """`traffic.figures.meets_slo`, on a flight."""
        if not flight.stream:
            return now - flight.at_s <= self._ttft_slo_s + self._itl_slo_s * max(0, flight.output_tokens - 1)
        seq = flight.seq
        if seq is None or flight.first_s - flight.at_s > self._ttft_slo_s:
            return False
        return seq.gap_count - seq.gaps_over_slo >= WITHIN_SLO_SHARE * seq.gap_count

    def _note(self, at_s: float, good: bool) -> None:
        index = int(at_s / SLICE_S)
        if index >= len(self.sent_by_slice):
            self._reach(index + 1)
        self.sent_by_slice[index] += 1
        if good:
            self.good_by_slice[index] += 1

    def _reach(self, slices: int) -> None:
        while len(self.sent_by_slice) < slices:
            self.sent_by_slice.append(0)
            self.good_by_slice.append(0)


def _merged(one: dict[int, int], two: dict[int, int]) -> dict[int, int]:
    merged = Histogram(one)
    merged.merge(two)
    return merged.counts
