"""SGLang's scheduler, where it differs from vLLM V1's (`twin.instance`).

Theory. A step is either a prefill batch or one decode of everybody, never both. As long as prompts wait and there is
room, prefill batches run back to back and open streams stand still; a batch takes up to `step_tokens` prompt tokens
(`chunked_prefill_size`), and one prompt at a time may be left half computed. A prompt is admitted when its tokens and
all of its answer fit into free KV beside what the running ones are expected to need yet: the rest of their
`max_tokens` times the *new-token ratio*. That ratio starts at 0.7 and falls to 0.098 over 600 decode steps, so a
server that did not run out of memory grows bolder. A refusal marks the batch full, and no prompt is looked at until
somebody ends. When a decode step finds no room, streams are *retracted*: the one with the fewest tokens generated, of
those the longest prompt; it goes to the end of the line, its prompt and tokens are computed again, and the ratio is
set to what the others showed. With `lpm` the waiting prompts with the longest cached prefix go first, while no more
than 128 wait.

Streams that a prefill batch started or held up get their next gap apart: the first decode after prefill is a step of
its own, whose gap is the time since each one's last token.

(SGLang 0.5.17 as it ran on an H200 in shared/measured/h200_sglang, whose log shows the ratio; its scheduler's
documented defaults.)
"""

from __future__ import annotations

from collections import deque
from typing import Final

from tidegate.spec import EngineProfile
from tidegate.twin.cost import StepCost
from tidegate.twin.instance import Instance
from tidegate.twin.sequence import DECODE, PREFILL, WAITING, Sequence
from tidegate.twin.steplog import StepLog

FIRST_RATIO: Final = 0.7
LEAST_RATIO: Final = 0.098
RATIO_STEPS: Final = 600
CLIP_TOKENS: Final = 4096
"""More than this of an answer is not held free for it."""
RETRACT_STEPS: Final = 20
LPM_MOST_WAITING: Final = 128


class SglangInstance(Instance):
    """See the module's docstring."""

    __slots__ = ("_decoded_s", "_fresh", "_full", "_joining", "_longest_prefix", "_ratio", "_ratio_steps", "_seen_s")

    def __init__(
        self,
        name: str,
        profile: EngineProfile,
        cost: StepCost,
        log: StepLog | None = None,
        list_tokens: bool = True,
        capacity_tokens: int = -1,
        longest_prefix: bool = False,
    ) -> None:
        """As `Instance`; `longest_prefix` is `--schedule-policy lpm`."""
        super().__init__(name, profile, cost, log, list_tokens, capacity_tokens)
        self._longest_prefix = longest_prefix
        self._joining: list[Sequence] = []
        """Prompts computed since the last decode step, in PREFILL still: their first token is out."""
        self._fresh: list[Sequence] = []
        """Those of them that the decode step under way takes along."""
        self._full = False
        """A prompt found no room; nobody is looked at until somebody ends."""
        self._decoded_s = -1.0
        """When the last decode step ended."""
        self._seen_s = -1.0
        """When its last token was seen."""
        self._ratio = FIRST_RATIO
        self._ratio_steps = 0

    @property
    def new_token_ratio(self) -> float:
        """Share of the running answers' remaining tokens that is held free."""
        fall = (FIRST_RATIO - LEAST_RATIO) / RATIO_STEPS * self._ratio_steps
        return max(LEAST_RATIO, self._ratio - fall)

    # --- scheduling -------------------------------------------------------------------------------------------

    def _schedule(self, now: float) -> None:
        if self._running == 0:
            self._ratio, self._ratio_steps = FIRST_RATIO, 0
        if self._partial is not None or (self._waiting_count > 0 and not self._full):
            self._fill_batch()
        if not self._chunk_seqs:
            self._make_room(now)
            self._join()
            self.pool.take(self._need[self._tick % self._block_tokens])

    def _fill_batch(self) -> None:
        """The half-computed prompt goes on; others join it while tokens, sequences and KV last."""
        budget = self._step_tokens
        seq = self._partial
        if seq is not None:
            chunk = min(seq.target_tokens - seq.computed_tokens, budget)
            if not self._holdings.grow(seq, seq.computed_tokens + chunk):
                return
            self._add_chunk(seq, chunk)
            budget -= chunk
        if budget > 0 and self._waiting_count > 0 and not self._full and self._partial is None:
            self._admit(budget)

    def _admit(self, budget: int) -> None:
        if self._longest_prefix and self._waiting_count <= LPM_MOST_WAITING:
            self._sort_by_prefix()
        waiting = self._waiting
        held = self._held_free()
        while budget > 0 and waiting:
            seq = waiting[0]
            if seq.state != WAITING:
                waiting.popleft()
                continue
            answer = min(seq.output_tokens - seq.generated_tokens, CLIP_TOKENS)
            wanted = (seq.target_tokens + answer + held) // self._block_tokens
            if self._running >= self._max_sequences or (self._running > 0 and wanted > self.pool.free):
                self._full = True
                return
            if not self._holdings.admit(seq):
                self._full = True
                return
            waiting.popleft()
            self._waiting_count -= 1
            chunk = min(seq.target_tokens - seq.computed_tokens, budget)
            self._holdings.grow(seq, seq.computed_tokens + chunk)
            budget -= chunk
            held += answer + seq.target_tokens - seq.computed_tokens - chunk
            self._enter_batch(seq)
            self._add_chunk(seq, chunk)

    def _held_free(self) -> int:
        """Tokens that the running answers are expected to need yet."""
        rest = 0
        for seq in self._order:
            if seq.state == DECODE or seq.state == PREFILL:
                rest += min(seq.output_tokens - self.generated(seq), CLIP_TOKENS)
        return int(rest * self.new_token_ratio)

    def _sort_by_prefix(self) -> None:
        keyed: list[tuple[int, int, Sequence]] = []
        for seq in self._waiting:
            if seq.state == WAITING:
                keyed.append((-self._holdings.cached_tokens(seq), len(keyed), seq))
        keyed.sort()
        self._waiting = deque([entry[2] for entry in keyed])

    # --- decoding ---------------------------------------------------------------------------------------------

    def _join(self) -> None:
        for seq in self._joining:
            if seq.state == PREFILL:
                self._enter_decode(seq)
                self._fresh.append(seq)
        self._joining = []

    def _make_room(self, now: float) -> None:
        """Retracts until the next decode step finds its blocks; the last stream is never retracted."""
        retracted = False
        while self._running > 1 and self._blocks_wanted() > self.pool.free:
            self._retract(now)
            retracted = True
        if retracted:
            self._learn_ratio()

    def _blocks_wanted(self) -> int:
        wanted = self._need[self._tick % self._block_tokens]
        for seq in self._joining:
            if seq.state == PREFILL and seq.computed_tokens % self._block_tokens == 0:
                wanted += 1
        return wanted

    def _retract(self, now: float) -> None:
        chosen = self._order[-1]
        found = False
        least, longest = 0, 0
        for seq in self._order:
            if seq.state == DECODE or seq.state == PREFILL:
                generated = self.generated(seq)
                if not found or generated < least or (generated == least and seq.prompt_tokens > longest):
                    chosen, least, longest, found = seq, generated, seq.prompt_tokens, True
        if chosen.state == DECODE:
            self._leave_decode(chosen)
            chosen.last_token_s = self._seen_s
        self._leave_batch(chosen, self._holdings.prefix_cache)
        self._order.remove(chosen)
        chosen.state = WAITING
        chosen.computed_tokens = 0
        chosen.preemptions += 1
        self._total.preemptions += 1
        self._waiting.append(chosen)
        self._waiting_count += 1
        self._preempted.append(chosen)

    def _learn_ratio(self) -> None:
        decoded, most = 0, 0
        for seq in self._order:
            if seq.state == DECODE or seq.state == PREFILL:
                decoded += self.generated(seq) + RETRACT_STEPS
                most += seq.output_tokens
        if most > 0:
            self._ratio, self._ratio_steps = min(1.0, decoded / most), 0

    def _leave_batch(self, seq: Sequence, keep: bool) -> None:
        super()._leave_batch(seq, keep)
        self._full = False

    # --- steps ------------------------------------------------------------------------------------------------

    def _begin_prefill(self, now: float) -> None:
        self._batch = 0
        super()._begin_prefill(now)

    def _begin_decode(self, now: float, most: int) -> None:
        held_up = len(self._fresh) > 0 or self._decoded_s != now
        super()._begin_decode(now, 1 if held_up else most)

    def _account_decodes(self, steps: int, decoding: int, end_s: float) -> None:
        super()._account_decodes(steps, decoding, end_s)
        self._ratio_steps += steps
        self._decoded_s = self._ended_s
        self._seen_s = end_s
        self._fresh = []

    def _log_decodes(self, log: StepLog, steps: int, end_s: float) -> None:
        fresh = self._fresh
        if not fresh and self._decoded_s == self._start_s:
            super()._log_decodes(log, steps, end_s)
            return
        if self._batch > len(fresh):
            log.steps(end_s - self._seen_s, 0.0, 0, 1, self._tick)
        for seq in fresh:
            log.gap(seq, end_s - seq.last_token_s)
            seq.last_token_s = -1.0
            log.enter(seq, end_s, self._tick + 1)

    def _sampled(self, seq: Sequence, end_s: float) -> None:
        """It decodes with the next decode step; what it waited since a retraction is one gap."""
        if self.log is not None and seq.last_token_s >= 0.0:
            self.log.gap(seq, end_s - seq.last_token_s)
        seq.last_token_s = end_s
        self._joining.append(seq)
