"""The ticket: one request's whole life, and the commands it gives.

A ticket is the one owner of everything its request holds: a place in the queue, or an attempt with its claim in the
ledger. It is opened when the head is known and closed exactly once, in every path, with one `Outcome`; closing
releases whatever is still held. Before the first byte went to the client a ticket may move to another attempt; from
`STREAMING` on it may only end. Events reach it through `Gate`, which alone moves it; a move the table does not list
is a defect and raises at once instead of leaking a slot.
"""

from __future__ import annotations

from typing import Final

from tidegate.errors import Outcome
from tidegate.policy.ledger import Instance
from tidegate.policy.limit import Reservation

OPEN: Final = 0
QUEUED: Final = 1
SENT: Final = 2
STREAMING: Final = 3
CLOSED: Final = 4

STATE_NAMES: Final = ("open", "queued", "sent", "streaming", "closed")

LEGAL: Final = (
    (QUEUED, SENT, CLOSED),  # from OPEN: decided at once
    (SENT, CLOSED),  # from QUEUED: room came, or patience, client or gateway went
    (OPEN, STREAMING, CLOSED),  # from SENT: broke and is decided again, first token, or ended
    (CLOSED,),  # from STREAMING
    (),  # from CLOSED
)


ALLOWED: Final = [sum(1 << state for state in states) for states in LEGAL]
"""The same as bits, because every request asks four times."""


class Head:
    """What the gate is told of a request. Counts are -1 where the client did not say."""

    __slots__ = ("body_bytes", "max_tokens", "model", "priority", "prompt_bytes", "prompt_tokens", "stream", "tenant")

    def __init__(
        self,
        model: str,
        tenant: str = "default",
        prompt_bytes: int = 0,
        body_bytes: int = 0,
        max_tokens: int = -1,
        prompt_tokens: int = -1,
        priority: int = 2,
        stream: bool = True,
    ) -> None:
        self.model = model
        self.tenant = tenant
        self.prompt_bytes = prompt_bytes
        self.body_bytes = body_bytes
        self.max_tokens = max_tokens
        self.prompt_tokens = prompt_tokens
        """Exact, from a tokenizer; -1 lets the gate estimate from `prompt_bytes`."""
        self.priority = priority
        """0 critical, 1 high, 2 normal, 3 best effort."""
        self.stream = stream
        """False for a whole answer, whose first token nobody sees."""


class Usage:
    """Tokens of a finished answer; `known` is false where they were counted instead of told."""

    __slots__ = ("known", "output_tokens", "prompt_tokens")

    def __init__(self, prompt_tokens: int, output_tokens: int, known: bool = True) -> None:
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.known = known


class Refusal:
    """Why a request is not (or no longer) served, in the words and codes the client gets."""

    __slots__ = ("code", "message", "outcome", "retry_after_s", "retryable", "status")

    def __init__(
        self,
        outcome: Outcome,
        status: int,
        code: str,
        message: str,
        retryable: bool,
        retry_after_s: float | None = None,
    ) -> None:
        self.outcome = outcome
        self.status = status
        self.code = code
        self.message = message
        self.retryable = retryable
        self.retry_after_s = retry_after_s


class Ticket:
    """One request. Only `Gate` changes it; `context` is the shell's own and never read here."""

    __slots__ = (
        "attempt", "attempts", "charged_tokens", "context", "deadline_s", "expected_output_tokens", "head", "id",
        "long", "opened_s", "outcome", "prompt_tokens", "refusal", "reservation", "sent_s", "state", "tried",
    )  # fmt: skip

    def __init__(self, number: int, head: Head, now: float, context: object = None) -> None:
        self.id = number
        self.head = head
        self.opened_s = now
        self.sent_s = -1.0
        """When it left the queue for its first attempt; -1 until then."""
        self.context = context
        self.state = OPEN
        self.prompt_tokens = 0
        self.expected_output_tokens = 0
        self.long = False
        """Its prompt is beyond the long mark: it queues and prefills in the long lane."""
        self.deadline_s = now
        """When waiting stops making sense: an admission later than this would miss the SLO."""
        self.charged_tokens = -1
        """Output tokens its tenant was charged for in advance; -1 while it was not charged."""
        self.attempts = 0
        self.attempt: Attempt | None = None
        self.reservation: Reservation | None = None
        """What it took out of its tenant's budgets; None where no limit applies."""
        self.tried: list[Instance] = []
        self.outcome: Outcome | None = None
        self.refusal: Refusal | None = None

    def move(self, state: int) -> None:
        """Changes state along the table. Raises `RuntimeError` on any other move."""
        if not ALLOWED[self.state] & (1 << state):
            raise RuntimeError(f"ticket {self.id}: {STATE_NAMES[self.state]} → {STATE_NAMES[state]} is not a move")
        self.state = state

    def close(self, outcome: Outcome) -> None:
        """Ends the ticket, once; the second call raises."""
        self.move(CLOSED)
        self.outcome = outcome
        if self.reservation is not None:
            # Whatever was not settled by its usage never reached an engine.
            self.reservation.settle(0, 0, served=False)


class Command:
    """What a shell must do next for `ticket`."""

    __slots__ = ("ticket",)

    def __init__(self, ticket: Ticket) -> None:
        self.ticket = ticket


class Wait(Command):
    """The request is queued; a later command decides it."""

    __slots__ = ()


class Attempt(Command):
    """Send the request to `instance`. Stays the handle of that attempt: its events name it, and the shell meters
    progress into `last_s` and `tokens` in place."""

    __slots__ = (
        "blocks",
        "closed",
        "first_s",
        "instance",
        "last_s",
        "number",
        "prefill_tokens",
        "started_s",
        "tokens",
        "trial",
    )

    def __init__(self, ticket: Ticket, instance: Instance, number: int, blocks: int, now: float) -> None:
        super().__init__(ticket)
        self.instance = instance
        self.number = number
        self.blocks = blocks
        self.prefill_tokens = ticket.prompt_tokens
        self.started_s = now
        self.first_s = -1.0
        self.last_s = now
        self.tokens = 0
        self.closed = False
        self.trial = instance.breaker.state != 0 and instance.breaker.sent()
        """It is the one request that tries an instance whose breaker is open."""
        instance.claim(blocks, self.prefill_tokens, ticket.long, now)

    def first_token(self, now: float) -> None:
        """The first token is out."""
        self.first_s = self.last_s = now
        tokens, instance = self.prefill_tokens, self.instance
        if tokens:
            self.prefilled()
            if self.ticket.head.stream:
                instance.prefill_rate.done(tokens, now, instance.prefill_tokens)

    def prefilled(self) -> None:
        """Its prompt no longer counts as prefill; idempotent."""
        if self.prefill_tokens:
            self.instance.prefilled(self.prefill_tokens, self.ticket.long)
            self.prefill_tokens = 0

    def release(self, now: float) -> None:
        """Returns the claim to the ledger, once."""
        if self.closed:
            return
        self.closed = True
        if self.prefill_tokens:
            self.prefilled()
            self.instance.prefill_rate.left(now)
        self.instance.release(self.blocks)


class Cancel(Command):
    """Stop `attempt` at its engine now; its later events mean nothing."""

    __slots__ = ("attempt",)

    def __init__(self, attempt: Attempt) -> None:
        super().__init__(attempt.ticket)
        self.attempt = attempt


class Refuse(Command):
    """Tell the client `refusal`: as an HTTP error before any byte was sent, as one in-band error event afterwards."""

    __slots__ = ("refusal",)

    def __init__(self, ticket: Ticket, refusal: Refusal) -> None:
        super().__init__(ticket)
        self.refusal = refusal


class Settle(Command):
    """The ticket is closed and `ticket.outcome` final: count it, log it, forget it. Exactly once per ticket."""

    __slots__ = ()
