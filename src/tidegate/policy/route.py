"""Routing: the ready instance with the least active KV, ties rotated (design.md §4.6).

Filter (ready, not tried by this request, room) → score (active KV blocks plus queued prefill, as a share of the
instance's capacity) → pick. The scan is O(instances) per decision. Instances whose capacity is unknown are compared
by the mean capacity of those that told, or, when none did, by absolute blocks.
"""

from __future__ import annotations

from tidegate.policy import lifecycle
from tidegate.policy.admit import Admission
from tidegate.policy.breaker import CLOSED
from tidegate.policy.ledger import Instance
from tidegate.policy.ticket import Ticket


class Router:
    """Picks among one pool's instances."""

    __slots__ = ("_assumed_capacity", "_turn", "instances")

    def __init__(self, instances: list[Instance]) -> None:
        self.instances = instances
        self._turn = len(instances) - 1
        self._assumed_capacity = 1.0

    def any_ready(self) -> bool:
        """Whether anybody could serve at all."""
        return any(instance.ready for instance in self.instances)

    def ready_count(self) -> int:
        """How many could serve; at least 1, to divide by."""
        return max(1, sum(1 for instance in self.instances if instance.ready))

    def prefill_rate(self) -> float:
        """Prefill rate of the ready instances together, tokens per second; those that showed none yet count as the mean
        of the others. 0 while none did."""
        total, known, ready = 0.0, 0, 0
        for instance in self.instances:
            if instance.ready:
                ready += 1
                if instance.prefill_rate.per_s > 0.0:
                    known += 1
                    total += instance.prefill_rate.per_s
        return total / known * ready if known else 0.0

    def pick(self, ticket: Ticket, admission: Admission, now: float, only: Instance | None = None) -> Instance | None:
        """The best instance (or `only` that one) that has room, or None."""
        if only is not None:
            return only if self._may_take(only, ticket, admission, now) else None
        instances = self.instances
        count = len(instances)
        best: Instance | None = None
        best_score = 0.0
        index = self._turn
        for _ in range(count):
            index += 1
            if index >= count:
                index = 0
            instance = instances[index]
            # The score first: room is asked only of the few that would be the best so far.
            score = self._score(instance, now)
            if (best is None or score < best_score) and self._may_take(instance, ticket, admission, now):
                best, best_score = instance, score
        if best is not None:
            self._turn = self._turn + 1 if self._turn + 1 < count else 0
        return best

    def _may_take(self, instance: Instance, ticket: Ticket, admission: Admission, now: float) -> bool:
        if instance.state != lifecycle.READY or (ticket.tried and instance in ticket.tried):
            return False
        breaker = instance.breaker
        if breaker.state != CLOSED and not breaker.allows(now):
            return False
        return admission.has_room(instance, ticket, now)

    def _score(self, instance: Instance, now: float) -> float:
        capacity = float(instance.capacity_blocks) if instance.capacity_blocks > 0 else self._assumed_capacity
        return instance.load_at(now) / capacity

    def any_resting(self) -> bool:
        """Whether any breaker is not closed."""
        return any(instance.breaker.state != CLOSED for instance in self.instances)

    def may_open(self, instance: Instance, max_ejected: float) -> bool:
        """Whether `instance` may be taken out by rate: within the cap, and never the last one that serves."""
        out = sum(1 for other in self.instances if other.breaker.state != CLOSED)
        left = any(i.ready and i.breaker.state == CLOSED for i in self.instances if i is not instance)
        return left and out + 1 <= max_ejected * len(self.instances)

    def capacity_learned(self) -> None:
        """An instance told its KV capacity: renews what is assumed of those that have not."""
        known = [i.capacity_blocks for i in self.instances if i.capacity_blocks > 0]
        self._assumed_capacity = sum(known) / len(known) if known else 1.0
