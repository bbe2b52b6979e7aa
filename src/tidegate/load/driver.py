"""Sends planned requests at their times, whatever the server does, and collects one record for each.

Theory: the schedule is absolute. A timer sends everything that is due and re-arms for the next; nothing waits for
an answer. A request that finds every connection of the driver's own bound in use is held back, sent as soon as one
is free, and its wait is the client's lag, not the server's. Each request ends exactly once, and is recorded then:

    planned --due--> held back --> flying --complete | broken | timeout | stopped--> recorded
    planned --due--> flying

A whole batch of streams ticks together, and its chunks are read in one turn of the loop; what falls due meanwhile is
sent between two chunks instead of after the last.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from tidegate.errors import Outcome
from tidegate.load.answer import Answer
from tidegate.load.prompts import PromptBook
from tidegate.load.target import Target
from tidegate.load.verdict import Verdict
from tidegate.traffic.plan import PlannedRequest
from tidegate.traffic.record import RequestRecord
from tidegate.transport.client import Call, ConnectionPool
from tidegate.wire.http import Headers

_SWEEP_S: Final = 0.25
_SPIN_S: Final = 0.0015
"""uvloop's timers count whole milliseconds: the last stretch before a send is waited out turn by turn of the loop."""


class Flight:
    """One request under way: the sink of its call."""

    __slots__ = ("answer", "call", "driver", "sent_s")

    def __init__(self, driver: Driver, answer: Answer) -> None:
        self.driver = driver
        self.answer = answer
        self.sent_s = 0.0
        self.call: Call | None = None

    def on_answer_head(self, call: Call, status: int, headers: Headers) -> None:
        self.answer.head(status, headers)

    def on_answer_body(self, call: Call, data: bytes) -> None:
        now = time.monotonic()
        trouble = self.answer.feed(data, now)
        if now >= self.driver.next_due_s:
            self.driver.send_due()
        if trouble:
            call.cancel()
            self.driver.ended(self, self.answer.broken(trouble))

    def on_answer_complete(self, call: Call) -> None:
        self.driver.ended(self, self.answer.completed())

    def on_answer_broken(self, call: Call, cause: str) -> None:
        self.driver.ended(self, self.answer.broken(cause))


class Driver:
    """Drives one list of requests. Use once."""

    def __init__(
        self,
        target: Target,
        book: PromptBook,
        *,
        slo_itl_s: float,
        connections: int,
        timeout_s: float,
        verify_words: bool = False,
        purpose: str = "run",
    ) -> None:
        self.records: list[RequestRecord] = []
        self.sent = 0
        self.held_back = 0
        self.tokens = 0
        self.start_s = 0.0
        self.next_due_s = math.inf
        """When the next request is due, on the monotonic clock."""
        self.on_record: Callable[[RequestRecord], None] | None = None
        """Told of every record, for progress."""
        self._target = target
        self._book = book
        self._slo_itl_s = slo_itl_s
        self._connections = connections
        self._timeout_s = timeout_s
        self._verify_words = verify_words
        self._purpose = purpose
        self._pool = ConnectionPool(target.host, target.port, now=time.monotonic, connect_timeout_s=5.0)
        self._plans: deque[PlannedRequest] = deque()
        self._held: deque[PlannedRequest] = deque()
        self._flying: dict[Flight, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._over = asyncio.Event()
        self._stopped = False

    @property
    def in_flight(self) -> int:
        """Requests sent and not ended."""
        return len(self._flying)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the schedule's zero."""
        return time.monotonic() - self.start_s

    async def run(self, plans: list[PlannedRequest]) -> list[RequestRecord]:
        """Sends `plans` by their `at_s` and returns when each that was sent has ended, ordered by index."""
        self._plans = deque(plans)
        self.start_s = time.monotonic()
        self._sweep()
        self.send_due()
        self._check_over()
        try:
            await self._over.wait()
        finally:
            self.stop()
            self._pool.close()
        self.records.sort(key=lambda record: record.plan.index)
        return self.records

    def stop(self) -> None:
        """Sends nothing more and cancels what is in flight; each such request is recorded as cancelled."""
        self._stopped = True
        self._plans.clear()
        self._held.clear()
        for timer in (self._timer, self._sweeper):
            if timer is not None:
                timer.cancel()
        for flight in list(self._flying):
            self._give_up(flight, (Outcome.CLIENT_CANCELLED, "interrupted"))
        self._check_over()

    def ended(self, flight: Flight, verdict: Verdict) -> None:
        """A flight's one end."""
        self._flying.pop(flight)
        flight.call = None  # breaks the cycle with the call, whose sink the flight is
        answer = flight.answer
        record = answer.record(verdict, flight.sent_s, time.monotonic(), self._slo_itl_s)
        _rebase(record, self.start_s)
        self.records.append(record)
        self.tokens += record.output_tokens
        if self.on_record is not None:
            self.on_record(record)
        if self._held and not self._stopped:
            self._send(self._held.popleft())
        self._check_over()

    def send_due(self) -> None:
        """Sends what is due, and arms for what is next."""
        plans = self._plans
        while plans and self.start_s + plans[0].at_s <= time.monotonic():
            plan = plans.popleft()
            if len(self._flying) >= self._connections:
                self.held_back += 1
                self._held.append(plan)
            else:
                self._send(plan)
        self.next_due_s = self.start_s + plans[0].at_s if plans else math.inf
        self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._plans:
            return
        loop = asyncio.get_running_loop()
        delay_s = self.next_due_s - time.monotonic()
        if delay_s <= _SPIN_S:
            self._timer = loop.call_later(0, self.send_due)
        else:
            self._timer = loop.call_later(delay_s - _SPIN_S, self.send_due)

    def _send(self, plan: PlannedRequest) -> None:
        body = self._book.body(plan, self._purpose)
        head = self._target.head(len(body))
        flight = Flight(self, Answer(plan, self._verify_words))
        self._flying[flight] = None
        self.sent += 1
        flight.sent_s = time.monotonic()
        flight.call = self._pool.call(head, body, flight)

    def _sweep(self) -> None:
        """Gives up on requests older than the timeout; flights are ordered by age."""
        self._sweeper = asyncio.get_running_loop().call_later(_SWEEP_S, self._sweep)
        oldest_s = time.monotonic() - self._timeout_s
        late = []
        for flight in self._flying:
            if flight.sent_s >= oldest_s:
                break
            late.append(flight)
        for flight in late:
            self._give_up(flight, (Outcome.CLIENT_TIMEOUT, f"no end within {self._timeout_s:g} s"))
        self._pool.expire()

    def _give_up(self, flight: Flight, verdict: Verdict) -> None:
        if flight.call is not None:
            flight.call.cancel()
        self.ended(flight, verdict)

    def _check_over(self) -> None:
        if not self._plans and not self._held and not self._flying:
            self._over.set()


def _rebase(record: RequestRecord, start_s: float) -> None:
    """Times from the monotonic clock to seconds since the run's start, to the microsecond."""
    record.sent_s = _since(record.sent_s, start_s)
    record.first_token_s = _since(record.first_token_s, start_s)
    record.first_visible_s = _since(record.first_visible_s, start_s)
    record.last_token_s = _since(record.last_token_s, start_s)
    record.end_s = _since(record.end_s, start_s)


def _since(instant_s: float | None, start_s: float) -> float | None:
    return None if instant_s is None else round(instant_s - start_s, 6)
