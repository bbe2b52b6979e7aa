"""Admission: the room an instance has, and the bounded queue of those who wait for it (design.md §4.5).

A request goes in while its instance is below three bounds: requests in flight, prompt tokens whose first token is
not out, and KV blocks spoken for. A request larger than a bound goes in alone, so that nothing waits for ever. Who
finds no room waits in a queue bounded by count, bytes and age; four classes, strict priority between them, first
come first served inside.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final

from tidegate.policy.ledger import Instance
from tidegate.policy.ticket import QUEUED, Ticket
from tidegate.spec import AdmissionSpec, QueueSpec

CLASSES: Final = 4
RATE_WINDOW_S: Final = 5.0
RETRY_AFTER_MIN_S: Final = 1.0
RETRY_AFTER_MAX_S: Final = 60.0


class Admission:
    """The bounds one instance is held to."""

    __slots__ = ("enabled", "kv_high", "max_in_flight", "max_prefill_tokens")

    def __init__(self, spec: AdmissionSpec) -> None:
        self.enabled = spec.enabled
        self.max_in_flight = spec.max_in_flight
        self.max_prefill_tokens = spec.max_prefill_tokens
        self.kv_high = spec.kv_high

    def has_room(self, instance: Instance, ticket: Ticket, now: float) -> bool:
        """Whether `instance` may take `ticket` now."""
        if not self.enabled:
            return True
        if instance.in_flight >= self.max_in_flight:
            return False
        pending = instance.prefill_tokens
        if pending > 0 and pending + ticket.prompt_tokens > self.max_prefill_tokens:
            return False
        if instance.capacity_blocks < 0 or instance.in_flight == 0:
            return True
        claim = instance.blocks_for(ticket.prompt_tokens + ticket.expected_output_tokens)
        return instance.active_blocks(now) + claim <= self.kv_high * instance.capacity_blocks


class WaitingLine:
    """The queue of one pool. Cancelled tickets stay in their deque until they reach its head, but not in the counts."""

    __slots__ = ("_lanes", "bytes", "count", "max_bytes", "max_requests", "max_wait_s")

    def __init__(self, spec: QueueSpec) -> None:
        self.max_requests = spec.max_requests
        self.max_bytes = spec.max_bytes
        self.max_wait_s = spec.max_wait_s
        self.count = 0
        self.bytes = 0
        self._lanes: list[deque[Ticket]] = [deque() for _ in range(CLASSES)]

    def bound_hit(self, ticket: Ticket) -> str:
        """The bound that keeps `ticket` out, in words, or the empty string."""
        if self.count >= self.max_requests:
            return f"{self.max_requests} requests waiting"
        if self.bytes + ticket.head.body_bytes > self.max_bytes:
            return f"{self.bytes} of {self.max_bytes} bytes waiting"
        return ""

    def push(self, ticket: Ticket) -> None:
        """Takes `ticket` in, behind its class."""
        self._lanes[ticket.head.priority].append(ticket)
        self.count += 1
        self.bytes += ticket.head.body_bytes

    def head(self) -> Ticket | None:
        """Who is next, or None."""
        for lane in self._lanes:
            self._trim(lane)
            if lane:
                return lane[0]
        return None

    def left(self, ticket: Ticket) -> None:
        """`ticket` was admitted, refused or cancelled; its state says so already, or is about to."""
        self.count -= 1
        self.bytes -= ticket.head.body_bytes

    def expired(self, now: float) -> list[Ticket]:
        """Those who waited longer than `max_wait_s`, oldest first; they are still queued."""
        found: list[Ticket] = []
        for lane in self._lanes:
            self._trim(lane)
            for ticket in lane:
                if now - ticket.opened_s < self.max_wait_s:
                    break
                if ticket.state == QUEUED:
                    found.append(ticket)
        return found

    def everyone(self) -> list[Ticket]:
        """All who wait, in order."""
        return [ticket for lane in self._lanes for ticket in lane if ticket.state == QUEUED]

    def _trim(self, lane: deque[Ticket]) -> None:
        while lane and lane[0].state != QUEUED:
            lane.popleft()


class DrainRate:
    """How many requests a pool finishes per second, exponentially weighted over `RATE_WINDOW_S`."""

    __slots__ = ("_at_s", "_rate")

    def __init__(self) -> None:
        self._rate = 0.0
        self._at_s = 0.0

    def count(self, now: float) -> None:
        """One more finished."""
        self._rate = self.per_s(now) + 1.0 / RATE_WINDOW_S
        self._at_s = now

    def per_s(self, now: float) -> float:
        """The rate at `now`."""
        if self._rate == 0.0:
            return 0.0
        return self._rate * math.exp((self._at_s - now) / RATE_WINDOW_S)

    def retry_after_s(self, ahead: int, now: float) -> float:
        """When room should come for someone behind `ahead` others: whole seconds, at least 1, at most 60."""
        rate = self.per_s(now)
        if rate <= 0.0:
            return RETRY_AFTER_MIN_S
        wait = math.ceil((ahead + 1) / rate)
        return min(max(float(wait), RETRY_AFTER_MIN_S), RETRY_AFTER_MAX_S)
