"""Admission: the room an instance has, and whether a request can still make its SLO (design.md §4.5).

An instance takes a request while it is below its bounds: requests in flight, KV blocks spoken for, prompt tokens
whose first token is not out. What protects TTFT is measured. An instance is given prefill work `prefill_ahead`
seconds ahead and no more: enough that its steps are full, so little that who is next is decided here, where it is
fair, and not in the engine's own first-come line. How large the next prompt is plays no part in that, or small ones
would always slip in before large ones. And whoever would get its first token later than the SLO's TTFT times
`ttft_headroom`, counting what it waited and what is ahead of it, is not sent there. Long prompts prefill one at a
time on an instance. Until an instance's prefill rate is known the configured `max_prefill_tokens` alone holds. A
prompt larger than a bound goes in when the instance has no prefill outstanding: nothing waits for ever.
"""

from __future__ import annotations

from typing import Final

from tidegate.policy.ledger import Instance
from tidegate.policy.line import WaitingLine
from tidegate.policy.ticket import Ticket
from tidegate.spec import AdmissionSpec, SloSpec

LEAST_PATIENCE_S: Final = 0.02
"""Even a prompt that leaves no time to wait may wait this long: one engine step or two."""


class Admission:
    """The bounds one instance is held to."""

    __slots__ = (
        "ahead_s", "enabled", "kv_high", "long_share", "max_in_flight", "max_prefill_tokens", "max_wait_s", "ttft_s",
    )  # fmt: skip

    def __init__(self, spec: AdmissionSpec, slo: SloSpec, max_wait_s: float) -> None:
        self.enabled = spec.enabled
        self.max_in_flight = spec.max_in_flight
        self.max_prefill_tokens = spec.max_prefill_tokens
        self.ahead_s = spec.prefill_ahead_s
        self.kv_high = spec.kv_high
        self.long_share = spec.long_share
        self.max_wait_s = max_wait_s
        self.ttft_s = slo.ttft_s * spec.ttft_headroom

    def has_room(self, instance: Instance, ticket: Ticket, now: float) -> bool:
        """Whether `instance` may take `ticket` now."""
        if not self.enabled:
            return True
        if instance.in_flight >= self.max_in_flight:
            return False
        if instance.prefill_tokens > 0 and not self._prefill_fits(instance, ticket, now):
            return False
        if instance.capacity_blocks < 0 or instance.in_flight == 0:
            return True
        claim = instance.blocks_for(ticket.prompt_tokens + ticket.expected_output_tokens)
        return instance.active_blocks(now) + claim <= self.kv_high * instance.capacity_blocks

    def _prefill_fits(self, instance: Instance, ticket: Ticket, now: float) -> bool:
        ahead = instance.prefill_tokens
        if ahead + ticket.prompt_tokens > self.max_prefill_tokens or (ticket.long and instance.long_tokens > 0):
            return False
        rate = instance.prefill_rate.per_s
        if rate == 0.0:
            return True
        if ahead > rate * self.ahead_s:
            return False
        return ahead + ticket.prompt_tokens <= rate * (self.ttft_s - (now - ticket.opened_s))

    def deadline_s(self, ticket: Ticket, rate: float) -> float:
        """The latest useful start of a new ticket, at a prefill rate of `rate` tokens per second (0: unknown)."""
        patience_s = self.max_wait_s
        if rate > 0.0:
            spare_s = self.ttft_s - ticket.prompt_tokens / rate
            if spare_s > 0.0:
                patience_s = min(patience_s, max(spare_s, LEAST_PATIENCE_S))
        return ticket.opened_s + patience_s

    def hopeless(self, ticket: Ticket, line: WaitingLine, rate: float) -> bool:
        """Whether `ticket`, would it queue now, could not start by its deadline: while anybody waits room comes at the
        pool's prefill rate, shared between the lanes, and what stands before it takes longer. The ticket's own size
        plays no part, or small prompts would slip in where large ones are turned away. False while the rate is unknown.
        """
        if rate == 0.0:
            return False
        if line.other_waits(ticket):
            rate *= self.long_share if ticket.long else 1.0 - self.long_share
        return line.tokens_before(ticket) > rate * self.max_wait_s
