"""The waiting line of one pool: bounded, fair between tenants, urgent first inside a tenant, long prompts apart.

Order. Four classes with strict priority between them. Inside a class long prompts stand in a lane of their own, so
that one that finds no room never blocks the short ones behind it. While both lanes wait they take turns by admitted
prompt tokens, `long_share` to the long ones. Inside each lane the tenant with the least served tokens per weight is
next (virtual token counter: Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024): a tenant is
charged when admitted and corrected when settled, and one that comes back from idleness starts at the least counter
among those waiting, so that nobody saves up. Inside a tenant the earliest deadline is next.

Cost. Push, admission and expiry are O(log n). A ticket that left (cancelled, expired) stays in its heaps until it
reaches the top, and in no count.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Final

from tidegate.policy.ticket import QUEUED, Ticket
from tidegate.spec import QueueSpec

CLASSES: Final = 4
OUTPUT_WEIGHT: Final = 2
"""An output token counts as two prompt tokens, as in the paper."""


class Shares:
    """Virtual token counters of a pool's tenants."""

    __slots__ = ("_served", "floor", "weights")

    def __init__(self, weights: dict[str, float]) -> None:
        self.weights = weights
        self._served: dict[str, float] = {}
        self.floor = 0.0
        """The counter of the tenant admitted last: no newcomer starts below it."""

    def of(self, tenant: str) -> float:
        """A tenant's counter."""
        return self._served.get(tenant, 0.0)

    def wake(self, tenant: str) -> None:
        """A tenant that had nobody waiting queues again."""
        if self._served.get(tenant, 0.0) < self.floor:
            self._served[tenant] = self.floor

    def admit(self, ticket: Ticket) -> None:
        """Charges an admission in advance; nobody who comes later starts below this tenant."""
        tenant = ticket.head.tenant
        self.wake(tenant)
        self.floor = self._served.get(tenant, 0.0)
        self.charge(tenant, ticket.prompt_tokens, ticket.charged_tokens)

    def charge(self, tenant: str, prompt_tokens: float, output_tokens: float) -> None:
        """Served (or, negative, taken back)."""
        tokens = prompt_tokens + OUTPUT_WEIGHT * output_tokens
        self._served[tenant] = self._served.get(tenant, 0.0) + tokens / self.weights.get(tenant, 1.0)


class Lane:
    """One line: tenants in order of their counters, each with its tickets in order of their deadlines."""

    __slots__ = ("_entered", "_order", "_shares", "_waiting", "tokens")

    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self._waiting: dict[str, list[tuple[float, int, Ticket]]] = {}
        self._order: list[tuple[float, str]] = []
        """(counter, tenant), lazily kept: an entry is right when the counter still is the tenant's."""
        self._entered: dict[str, float] = {}
        """The counter of each tenant's one valid entry; others are leftovers. Without it every correction would leave
        an entry behind that each look at the head brings up to date again."""
        self.tokens: dict[str, int] = {}
        """Prompt tokens waiting, by tenant with anybody waiting."""

    def push(self, ticket: Ticket) -> None:
        """Takes `ticket` in."""
        tenant = ticket.head.tenant
        heap = self._waiting.get(tenant)
        if heap is None:
            heap = self._waiting[tenant] = []
            self.tokens[tenant] = 0
            self._shares.wake(tenant)
            self._enter(tenant, self._shares.of(tenant))
        heappush(heap, (ticket.deadline_s, ticket.id, ticket))
        self.tokens[tenant] += ticket.prompt_tokens

    def head(self) -> Ticket | None:
        """Who is next, or None."""
        while self._order:
            counter, tenant = self._order[0]
            entered = self._entered.get(tenant)
            if entered is None or entered != counter:
                heappop(self._order)
                continue
            heap = self._waiting.get(tenant)
            if heap is not None:
                while heap and heap[0][2].state != QUEUED:
                    heappop(heap)
            if not heap:
                heappop(self._order)
                self._waiting.pop(tenant, None)
                self._entered.pop(tenant, None)
                self.tokens.pop(tenant, None)
                continue
            now_at = self._shares.of(tenant)
            if counter != now_at:
                heappop(self._order)
                self._enter(tenant, now_at)
                continue
            return heap[0][2]
        return None

    def left(self, ticket: Ticket) -> None:
        """`ticket` waits no more."""
        tenant = ticket.head.tenant
        if tenant in self.tokens:
            self.tokens[tenant] -= ticket.prompt_tokens

    def recount(self, tenant: str) -> None:
        """A tenant's counter changed: if it went down, its entry must not hold it back."""
        entered = self._entered.get(tenant)
        if entered is not None and self._shares.of(tenant) < entered:
            self._enter(tenant, self._shares.of(tenant))

    def _enter(self, tenant: str, counter: float) -> None:
        self._entered[tenant] = counter
        heappush(self._order, (counter, tenant))

    def everyone(self) -> list[Ticket]:
        """All who wait."""
        return [entry[2] for heap in self._waiting.values() for entry in heap if entry[2].state == QUEUED]


class WaitingLine:
    """See the module's docstring."""

    __slots__ = (
        "_by_deadline",
        "_lane_served",
        "_lane_share",
        "_lanes",
        "bytes",
        "count",
        "max_bytes",
        "max_requests",
        "shares",
    )

    def __init__(self, spec: QueueSpec, weights: dict[str, float], long_share: float) -> None:
        self.max_requests = spec.max_requests
        self.max_bytes = spec.max_bytes
        self.count = 0
        self.bytes = 0
        self.shares = Shares(weights)
        self._lane_share = (1.0 - long_share, long_share)
        self._lane_served = [0.0, 0.0]
        """Prompt tokens admitted per share, of short and of long prompts."""
        self._lanes = [Lane(self.shares) for _ in range(2 * CLASSES)]
        self._by_deadline: list[tuple[float, int, Ticket]] = []

    def _lane_of(self, ticket: Ticket) -> Lane:
        return self._lanes[2 * ticket.head.priority + (1 if ticket.long else 0)]

    def nobody_before(self, ticket: Ticket) -> bool:
        """Whether no ticket of its length and of its class or a higher one waits."""
        if self.count == 0:
            return True
        offset = 1 if ticket.long else 0
        return all(self._lanes[2 * p + offset].head() is None for p in range(ticket.head.priority + 1))

    def bound_hit(self, ticket: Ticket) -> str:
        """The bound that keeps `ticket` out, in words, or the empty string."""
        if self.count >= self.max_requests:
            return f"{self.max_requests} requests waiting"
        if self.bytes + ticket.head.body_bytes > self.max_bytes:
            return f"{self.bytes} of {self.max_bytes} bytes waiting"
        return ""

    def push(self, ticket: Ticket) -> None:
        """Takes `ticket`, whose state is QUEUED, in."""
        self._lane_of(ticket).push(ticket)
        heappush(self._by_deadline, (ticket.deadline_s, ticket.id, ticket))
        self.count += 1
        self.bytes += ticket.head.body_bytes

    def left(self, ticket: Ticket) -> None:
        """`ticket` was admitted, refused or cancelled; its state says so already, or is about to."""
        self._lane_of(ticket).left(ticket)
        self.count -= 1
        self.bytes -= ticket.head.body_bytes
        if len(self._by_deadline) > 64 + 4 * self.count:
            self._by_deadline = [entry for entry in self._by_deadline if entry[2].state == QUEUED]
            heapify(self._by_deadline)

    def heads(self) -> list[Ticket]:
        """The next ticket of each lane that has one: higher classes first, in a class the lane that is due first."""
        found: list[Ticket] = []
        due = 1 if self._lane_served[1] < self._lane_served[0] else 0
        for priority in range(CLASSES):
            first = self._lanes[2 * priority + due]
            second = self._lanes[2 * priority + 1 - due]
            for lane in (first, second):
                if lane.tokens:  # an empty lane is not even looked into
                    ticket = lane.head()
                    if ticket is not None:
                        found.append(ticket)
        return found

    def _other_head(self, ticket: Ticket) -> Ticket | None:
        """Who waits in the other lane of the ticket's class or of a higher one."""
        offset = 0 if ticket.long else 1
        for priority in range(ticket.head.priority + 1):
            waiting = self._lanes[2 * priority + offset].head()
            if waiting is not None:
                return waiting
        return None

    def other_waits(self, ticket: Ticket) -> bool:
        """Whether somebody waits in the other lane."""
        return self.count > 0 and self._other_head(ticket) is not None

    def admitted(self, ticket: Ticket) -> None:
        """Charges an admission to its tenant and its lane."""
        self.shares.admit(ticket)
        lane, served = (1 if ticket.long else 0), self._lane_served
        if not self.other_waits(ticket):
            # Nobody to take turns with: the other lane starts level when it comes.
            served[1 - lane] = max(served[1 - lane], served[lane])
        share = self._lane_share[lane]
        served[lane] += ticket.prompt_tokens / share if share > 0.0 else 0.0

    def tokens_before(self, ticket: Ticket) -> int:
        """Prompt tokens that will be served before `ticket`, would it queue now: all of higher classes in its line of
        length, and of its own class as many as fair shares let pass while its own tenant's turn comes."""
        offset = 1 if ticket.long else 0
        before = 0
        for priority in range(ticket.head.priority):
            before += sum(self._lanes[2 * priority + offset].tokens.values())
        waiting = self._lanes[2 * ticket.head.priority + offset].tokens
        own = waiting.get(ticket.head.tenant, 0)
        others = len(waiting) - (1 if ticket.head.tenant in waiting else 0)
        if others == 0:
            return before + own
        # The others are served as much as this tenant meanwhile, and half of them have a turn before its first.
        passing = own * others + ticket.prompt_tokens * others // 2
        return before + min(sum(waiting.values()), own + passing)

    def charge(self, tenant: str, prompt_tokens: int, output_tokens: int) -> None:
        """Corrects what a tenant was charged; where it goes down its turn may come sooner."""
        self.shares.charge(tenant, prompt_tokens, output_tokens)
        if self.count:
            for lane in self._lanes:
                lane.recount(tenant)

    def expired(self, now: float) -> list[Ticket]:
        """Those whose deadline has passed, earliest first; they are still queued."""
        found: list[Ticket] = []
        heap = self._by_deadline
        while heap and (heap[0][0] <= now or heap[0][2].state != QUEUED):
            ticket = heappop(heap)[2]
            if ticket.state == QUEUED:
                found.append(ticket)
        return found

    def everyone(self) -> list[Ticket]:
        """All who wait, higher classes first."""
        return [ticket for lane in self._lanes for ticket in lane.everyone()]
