"""What the twin's shell keeps of one request, and the record it becomes."""

from __future__ import annotations

from tidegate.errors import Outcome
from tidegate.policy.gate import Gate
from tidegate.policy.ticket import Attempt, Refusal, Ticket
from tidegate.traffic.plan import PlannedRequest
from tidegate.traffic.record import RequestRecord
from tidegate.twin.instance import Instance
from tidegate.twin.sequence import Sequence

NO_PREFIX: tuple[int, ...] = ()


class Flight:
    """One request on its way: what was planned of it, in fields of its own because compiled code reads those many
    times faster than a struct's, and what became of it. `group` is its gap histogram's index."""

    __slots__ = (
        "at_s", "attempt", "first_s", "gate", "group", "index", "instance", "output_tokens", "phase",
        "planned_output_tokens", "planned_prompt_tokens", "prefix_block_tokens", "prefix_hashes", "prompt_tokens",
        "refusal", "seq", "status", "stream", "tenant", "ticket",
    )  # fmt: skip

    def __init__(
        self, index: int, at_s: float, prompt_tokens: int, output_tokens: int, phase: str, tenant: str, stream: bool
    ) -> None:
        self.index = index
        self.at_s = at_s
        self.planned_prompt_tokens = prompt_tokens
        self.planned_output_tokens = output_tokens
        self.phase = phase
        self.tenant = tenant
        self.stream = stream
        self.prefix_hashes = NO_PREFIX
        self.prefix_block_tokens = 512
        self.group = 0
        self.gate: Gate | None = None
        """The gateway it came to."""
        self.ticket: Ticket | None = None
        self.attempt: Attempt | None = None
        self.instance: Instance | None = None
        self.seq: Sequence | None = None
        self.first_s = -1.0
        self.status = 0
        self.refusal: Refusal | None = None
        self.prompt_tokens = 0
        """From the engine's usage, once the answer is whole."""
        self.output_tokens = 0

    def plan(self) -> PlannedRequest:
        """The request as it was planned."""
        return PlannedRequest(
            self.index, self.at_s, self.planned_prompt_tokens, self.planned_output_tokens, self.phase, self.tenant,
            self.stream, self.prefix_hashes, self.prefix_block_tokens,
        )  # fmt: skip

    def record(self, outcome: Outcome, now: float) -> RequestRecord:
        """The request's record, as it ends at `now`."""
        seq = self.seq
        streamed = self.stream and self.first_s >= 0.0
        gaps = seq is not None and streamed
        return RequestRecord(
            plan=self.plan(),
            outcome=outcome,
            status=self.status,
            reason=self.refusal.code if self.refusal is not None else "",
            sent_s=self.at_s,
            first_token_s=self.first_s if streamed else None,
            last_token_s=self._last_token_s(outcome, now),
            end_s=now,
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            usage_known=outcome is Outcome.COMPLETED,
            instance=self.instance.name if self.instance is not None else "",
            gap_count=seq.gap_count if seq is not None and gaps else 0,
            gaps_over_slo=seq.gaps_over_slo if seq is not None and gaps else 0,
            longest_gap_s=seq.longest_gap_s if seq is not None and gaps else 0.0,
        )

    def _last_token_s(self, outcome: Outcome, now: float) -> float | None:
        if self.first_s < 0.0:
            return None
        if outcome is Outcome.COMPLETED or self.instance is None:
            return now
        return max(self.first_s, self.instance.progress_s(now))


def flight_of(plan: PlannedRequest) -> Flight:
    """A planned request, not yet on its way."""
    flight = Flight(
        plan.index, plan.at_s, plan.prompt_tokens, plan.output_tokens, plan.phase, plan.tenant, plan.stream
    )  # fmt: skip
    flight.prefix_hashes = plan.prefix_hashes
    flight.prefix_block_tokens = plan.prefix_block_tokens
    return flight
