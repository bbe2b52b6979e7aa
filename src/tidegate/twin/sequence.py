"""One request inside an engine, and what a step made of it.

Legal moves (vLLM V1): a sequence waits, computes its prompt in chunks, decodes one token a step, ends. Preemption by
recompute sends it back to the head of the waiting line; what it had generated becomes prompt. An abort ends it from
any state, at the next step boundary if a step is under way.

    WAITING → PREFILL, ABORTED
    PREFILL → DECODE, WAITING (preempted), FINISHED (one-token answer), ABORTED
    DECODE  → WAITING (preempted), FINISHED, ABORTED
"""

from __future__ import annotations

from typing import Final

from tidegate.twin.kv import Run

WAITING: Final = 0
PREFILL: Final = 1
DECODE: Final = 2
FINISHED: Final = 3
ABORTED: Final = 4


class Sequence:
    """One request. Only its `Instance` changes it; `key` and `context` are the caller's own and never read here.

    `prefix_hashes` name the prompt's leading stretches of `prefix_block_tokens` tokens each (a multiple of the KV
    block); equal hashes at equal depth mean equal text so far.
    """

    __slots__ = (
        "aborting", "blocks", "computed_tokens", "context", "gap_count", "gaps_over_slo", "generated_tokens", "group",
        "key", "last_tick", "last_token_s", "leftover", "log_tick", "longest_gap_s", "output_tokens", "over_mark",
        "preemptions", "prefix_block_tokens", "prefix_hashes", "prompt_tokens", "registered", "runs", "serial",
        "start_tick", "state",
    )  # fmt: skip

    def __init__(
        self,
        key: int,
        prompt_tokens: int,
        output_tokens: int,
        prefix_hashes: tuple[int, ...] = (),
        prefix_block_tokens: int = 16,
        context: object = None,
        group: int = 0,
    ) -> None:
        self.key = key
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.prefix_hashes = prefix_hashes
        self.prefix_block_tokens = prefix_block_tokens
        self.context = context
        self.group = group
        """Which of the step log's gap histograms its gaps go to."""
        self.state = WAITING
        self.aborting = False
        self.serial = 0
        """Order of admission to the running batch; renewed after a preemption."""
        self.generated_tokens = 0
        """Tokens produced before the present stretch of decoding; `Instance.generated` tells the present number."""
        self.computed_tokens = 0
        """Tokens in KV when the present stretch of prefill or decoding began its last finished chunk."""
        self.blocks = 0
        """Private KV blocks while in PREFILL; in DECODE they follow from the tick."""
        self.runs: list[Run] = []
        """Cached prefix runs held, in order."""
        self.registered = 0
        """Prefix hashes dealt with so far: hit, registered, or found to be another's."""
        self.leftover: Run | None = None
        """What a preemption gave back and may still be there."""
        self.start_tick = 0
        self.log_tick = 0
        """First tick whose step's duration is one of its gaps."""
        self.last_tick = -1
        self.preemptions = 0
        self.last_token_s = -1.0
        """When its last token came, known after a preemption only; -1 otherwise."""
        self.over_mark = 0
        self.gap_count = 0
        self.gaps_over_slo = 0
        self.longest_gap_s = 0.0

    @property
    def target_tokens(self) -> int:
        """Tokens whose KV must be computed before the next token can be sampled."""
        return self.prompt_tokens + self.generated_tokens

    @property
    def alive(self) -> bool:
        """Neither finished nor aborted."""
        return self.state <= DECODE


class StepResult:
    """What a finished step (or leap of steps) made: lists of sequences in a fixed order."""

    __slots__ = ("finished", "first", "preempted", "tokens")

    def __init__(self) -> None:
        self.first: list[Sequence] = []
        """Produced their first token; also in `tokens`, and in `finished` if it was the only one."""
        self.tokens: list[Sequence] = []
        """Produced a token, in batch order; empty unless the instance lists tokens."""
        self.finished: list[Sequence] = []
        self.preempted: list[Sequence] = []
        """Sent back to the waiting line when the step began."""
