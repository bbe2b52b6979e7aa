"""What a run keeps of its ended requests: every record, or only counts (`twin.tally`)."""

from __future__ import annotations

from tidegate.errors import Outcome
from tidegate.traffic.record import RequestRecord
from tidegate.twin.flight import Flight


class Recorder:
    """Told of each request once, when it ended."""

    __slots__ = ()

    def ended(self, flight: Flight, outcome: Outcome, now: float) -> None:
        """`flight` ended at `now`."""
        raise NotImplementedError


class RecordList(Recorder):
    """Keeps every record: about 700 bytes a request."""

    __slots__ = ("records",)

    def __init__(self) -> None:
        self.records: list[RequestRecord] = []

    def ended(self, flight: Flight, outcome: Outcome, now: float) -> None:
        self.records.append(flight.record(outcome, now))
