"""What the twin's shell keeps of one request, and the record it becomes."""

from __future__ import annotations

from tidegate.errors import Outcome
from tidegate.policy.ticket import Attempt, Refusal, Ticket
from tidegate.traffic.plan import PlannedRequest
from tidegate.traffic.record import RequestRecord
from tidegate.twin.instance import Instance
from tidegate.twin.sequence import Sequence


class Flight:
    """One planned request on its way. `group` is its gap histogram's index."""

    __slots__ = (
        "attempt", "first_s", "group", "instance", "output_tokens", "plan", "prompt_tokens", "refusal", "seq",
        "status", "ticket",
    )  # fmt: skip

    def __init__(self, plan: PlannedRequest, group: int) -> None:
        self.plan = plan
        self.group = group
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

    def record(self, outcome: Outcome, now: float) -> RequestRecord:
        """The request's record, as it ends at `now`."""
        plan, seq = self.plan, self.seq
        streamed = plan.stream and self.first_s >= 0.0
        gaps = seq is not None and streamed
        return RequestRecord(
            plan=plan,
            outcome=outcome,
            status=self.status,
            reason=self.refusal.code if self.refusal is not None else "",
            sent_s=plan.at_s,
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
