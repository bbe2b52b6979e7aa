"""One engine instance: vLLM V1's scheduler as a state machine that is advanced step by step, or in leaps.

Every step has one token budget. Decodes come first, one token each; then the one prompt that may be half computed;
then, unless the step preempted somebody, waiting prompts in order of arrival while budget, sequences and KV blocks
last (a prompt goes in only if all of it fits the free blocks, though it is computed in chunks). A decode that finds
no block preempts the newest running sequence: its blocks go back and it waits at the head of the line.

The economy: all decodes advance together, so the instance counts *ticks* (steps) and never touches a decoding
sequence between its first step and its last. When a sequence starts to decode its last tick is known, and so is the
tick modulo the block size at which it needs a block; `_need` counts sequences by that residue. A step costs O(1)
plus its events.

A *stretch* is a run of pure decode steps of one batch while the step time is linear in the context (one cell of the
cost table). Its n-th step ends at anchor + n·a + slope·n(n−1)/2 whether the steps are taken one by one
(`begin_step`) or many at once (`begin_leap`), so both give the same times to the last bit. A leap ends where something
can change: at a finish, at the edge of the cell, before a block would be missing; an arrival or abort shortens it
to the step under way. With prompts waiting in vain an arrival changes nothing, and the leap goes on.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush

from tidegate.errors import BadInputError
from tidegate.spec import EngineProfile
from tidegate.twin.calibration import FrontEnd
from tidegate.twin.cost import StepCost
from tidegate.twin.counters import Statistics
from tidegate.twin.holdings import Holdings
from tidegate.twin.kv import BlockPool
from tidegate.twin.sequence import ABORTED, DECODE, FINISHED, PREFILL, WAITING, Sequence, StepResult
from tidegate.twin.steplog import StepLog
from tidegate.twin.stretch import Stretch


class Instance:
    """See the module's docstring. `now` never goes back; a step begun must be finished before the next."""

    __slots__ = (
        "_aborting", "_batch", "_block_tokens", "_chunk_seqs", "_chunk_tokens", "_context_sum", "_decoding",
        "_duration_s", "_ended_s", "_finishes", "_holdings", "_list_tokens", "_max_sequences", "_need", "_new_tokens",
        "_order", "_partial", "_preempted", "_running", "_serial", "_start_s", "_step_pairs", "_step_tokens",
        "_steps", "_stretch", "_tick", "_total", "_waiting", "_waiting_count", "cost", "front", "in_step", "log",
        "name", "pool", "profile", "step_end_s",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        profile: EngineProfile,
        cost: StepCost,
        log: StepLog | None = None,
        list_tokens: bool = True,
        capacity_tokens: int = -1,
    ) -> None:
        """`capacity_tokens` overrides the cost model's estimate of the KV cache, where the engine told the real one.
        Raises `BadInputError` where the engine would not start (`check_startable`)."""
        tokens = capacity_tokens if capacity_tokens >= 0 else cost.kv_capacity_tokens
        check_startable(name, profile, tokens)
        self.name = name
        self.profile = profile
        self.pool = BlockPool(tokens // profile.block_tokens)
        self.in_step = False
        self.step_end_s = -1.0
        """When the step or leap under way ends; an arrival or abort may bring it forward."""
        self.cost = cost
        self.log = log
        self._list_tokens = list_tokens
        self._block_tokens = profile.block_tokens
        self._step_tokens = profile.step_tokens
        self._max_sequences = profile.max_sequences
        self._holdings = Holdings(self.pool, profile.block_tokens, profile.prefix_cache)
        self._waiting: deque[Sequence] = deque()
        """May hold aborted sequences; `_waiting_count` does not count them."""
        self._waiting_count = 0
        self._order: list[Sequence] = []
        """Running batch by admission, newest last; may hold sequences that ended."""
        self._running = 0
        self._partial: Sequence | None = None
        """The running prompt that is half computed. The budget it exhausted kept others out, so it is the newest."""
        self._decoding = 0
        self._batch = 0
        """Those of them that the step under way decodes: all, but for engines that prefill and decode in turns."""
        self._context_sum = 0
        """Tokens in KV of all decoding sequences."""
        self._need: list[int] = [0] * profile.block_tokens
        self._finishes: list[tuple[int, int, Sequence]] = []
        """(last tick, serial, sequence); entries of sequences that left earlier are stale."""
        self._serial = 0
        self._tick = 0
        self._stretch = Stretch()
        self._steps = 0
        """Steps in the step or leap under way."""
        self._start_s = 0.0
        self._duration_s = 0.0
        self._chunk_seqs: list[Sequence] = []
        self._chunk_tokens: list[int] = []
        self._new_tokens = 0
        self._step_pairs = 0.0
        self._preempted: list[Sequence] = []
        self._aborting: list[Sequence] = []
        self._total = Statistics()
        self.front = FrontEnd()
        self._ended_s = 0.0

    # --- what callers do --------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Nobody runs and no step is under way."""
        return self._running == 0 and not self.in_step

    def refusal(self, prompt_tokens: int, max_tokens: int) -> str:
        """Why the engine would answer 400 to such a request, or the empty string."""
        limit = self.profile.context_tokens
        if prompt_tokens < 1:
            return "the prompt is empty"
        if prompt_tokens + max(max_tokens, 1) > limit:
            return (
                f"the model's maximum context length is {limit} tokens, but {prompt_tokens} prompt tokens and"
                f" {max(max_tokens, 1)} output tokens were requested"
            )
        return ""

    def submit(self, seq: Sequence, now: float) -> None:
        """Takes a new sequence in, behind all others. Raises `ValueError` for one that `refusal` refuses."""
        why = self.refusal(seq.prompt_tokens, seq.output_tokens)
        if why or seq.output_tokens < 1 or seq.prefix_block_tokens % self._block_tokens:
            raise ValueError(why or "output_tokens below 1, or prefix_block_tokens is no multiple of the KV block")
        if self._waiting_count == 0 and self._running < self._max_sequences:
            self._interrupt(now)
        self._waiting.append(seq)
        self._waiting_count += 1

    def abort(self, seq: Sequence, now: float) -> None:
        """Ends `seq` without a result: at once if it waits, else at the end of the step under way. Idempotent."""
        if not seq.alive or seq.aborting:
            return
        self._interrupt(now)
        if seq.state == WAITING:
            self._holdings.forget(seq)
            seq.state = ABORTED
            self._waiting_count -= 1
        elif self.in_step:
            seq.aborting = True
            self._aborting.append(seq)
        else:
            self._leave(seq, ABORTED)

    def change_cost(self, cost: StepCost, now: float) -> None:
        """Steps begun from `now` on take what `cost` says; the one under way ends as it began."""
        self._interrupt(now)
        self.cost = cost
        self._stretch.valid = False

    def crash(self, now: float) -> None:
        """The process dies in the middle of a step: what that step computed is lost, and everybody ends."""
        self._interrupt(now)
        if self.in_step and self._steps > 1:
            self._steps -= 1
            self.step_end_s = self._stretch.end_s(self._stretch.done + self._steps)
            self.finish_step()
        self.in_step = False
        self.step_end_s = -1.0
        self._chunk_seqs, self._chunk_tokens, self._aborting = [], [], []
        for seq in self._order:
            if seq.state == PREFILL or seq.state == DECODE:
                self._leave(seq, ABORTED)
        for seq in self._waiting:
            seq.state = ABORTED
        self._waiting_count = 0

    def begin_step(self, now: float) -> float:
        """Begins one step; returns when it ends, or -1.0 when there is nothing to do."""
        return self._begin(now, 1)

    def begin_leap(self, now: float) -> float:
        """Like `begin_step`, but takes all steps up to the next possible change at once."""
        return self._begin(now, 1 << 40)

    def finish_step(self) -> StepResult:
        """Finishes the step or leap under way, at `step_end_s`."""
        result = StepResult()
        steps, decoding = self._steps, self._batch
        self._ended_s = self.step_end_s
        self.in_step = False
        self.step_end_s = -1.0
        end_s = self._ended_s
        if self.cost.calibration.front_chunk_s > 0.0:
            self._fall_behind(steps, decoding)
            end_s += self.front.lag_s
        if self._preempted:
            result.preempted = self._preempted
            self._preempted = []
        if decoding > 0:
            if self._list_tokens:
                result.tokens = [s for s in self._order if s.state == DECODE and not s.aborting]
            self._account_decodes(steps, decoding, end_s)
        self._account_step(steps)
        if decoding == self._decoding:
            self._tick += steps
        if decoding > 0:
            self._finish_decodes(result)
        if self._chunk_seqs:
            self._finish_chunks(result, end_s)
        if self._aborting:
            self._finish_aborts()
        return result

    def generated(self, seq: Sequence) -> int:
        """Output tokens of `seq` so far, as of the last finished step."""
        if seq.state == DECODE:
            return seq.generated_tokens + self._tick - seq.start_tick
        return seq.generated_tokens

    def progress_s(self, now: float) -> float:
        """When the last step that ended by `now` ended; `now` itself between steps."""
        if not self.in_step or now >= self.step_end_s:
            return now
        steps = self._steps_begun(now) if self._steps > 1 else 1
        return self._start_s if steps == 1 else self._stretch.end_s(self._stretch.done + steps - 1)

    def statistics(self, now: float = -1.0) -> Statistics:
        """Gauges and counters. Given `now`, gauges count the steps of a leap that began by then; else its first."""
        total = self._total
        total.running = self._running
        total.waiting = self._waiting_count
        total.capacity_blocks = self.pool.total
        total.prefix_query_tokens = self._holdings.query_tokens
        total.prefix_hit_tokens = self._holdings.hit_tokens
        used = self.pool.used
        if self._steps > 1 and self.in_step:
            steps = self._steps_begun(now) if now >= 0.0 else 1
            used += self._blocks_needed(steps - 1)
        total.kv_used_blocks = used
        total.model_flops = self.cost.flops(
            total.computed_tokens + total.output_tokens, total.attended_pairs, total.output_tokens
        )
        return total

    # --- beginning a step -------------------------------------------------------------------------------------

    def _begin(self, now: float, most: int) -> float:
        if self.in_step:
            raise RuntimeError(f"{self.name}: a step is under way until {self.step_end_s}")
        if self._running == 0 and self._waiting_count == 0:
            return -1.0
        self._schedule(now)
        self.in_step = True
        self._start_s = now
        self._batch = self._decoding
        if self._chunk_seqs:
            self._begin_prefill(now)
        else:
            self._begin_decode(now, most)
        self._note_peak(self.pool.used)
        return self.step_end_s

    def _begin_prefill(self, now: float) -> None:
        batch = self._batch
        mean = (self._context_sum + batch) / batch if batch > 0 else 0.0
        self._steps = 1
        self._stretch.valid = False
        self._duration_s = self.cost.prefill_s(self._new_tokens, self._step_pairs, batch, mean)
        self.step_end_s = now + self._duration_s

    def _begin_decode(self, now: float, most: int) -> None:
        stretch, batch = self._stretch, self._decoding
        if not stretch.goes_on(now):
            stretch.begin(now, self.cost, batch, (self._context_sum + batch) / batch)
        steps = 1
        if most > 1 and not self._preempted:
            steps = stretch.room(min(most, self._next_finish() - self._tick + 1))
            if batch * (steps // self._block_tokens + 1) > self.pool.free:
                steps = self._steps_that_fit(steps)
        self._steps = steps
        self.step_end_s = stretch.end_s(stretch.done + steps)

    def _next_finish(self) -> int:
        finishes = self._finishes
        while finishes[0][2].last_tick != finishes[0][0] or finishes[0][2].state != DECODE:
            heappop(finishes)
        return finishes[0][0]

    def _steps_that_fit(self, most: int) -> int:
        """How many of `most` steps the free blocks allow; the first has its blocks already."""
        free, size = self.pool.free, self._block_tokens
        cycles = free // self._decoding
        steps = 1 + cycles * size
        free -= cycles * self._decoding
        while steps < most and self._need[(self._tick + steps) % size] <= free:
            free -= self._need[(self._tick + steps) % size]
            steps += 1
        return min(steps, most)

    def _blocks_needed(self, steps: int) -> int:
        """Blocks that the leap's steps 2 … 1 + `steps` take."""
        cycles, rest = divmod(steps, self._block_tokens)
        blocks = cycles * self._decoding
        first = self._tick + 1
        for tick in range(first, first + rest):
            blocks += self._need[tick % self._block_tokens]
        return blocks

    def _interrupt(self, now: float) -> None:
        """Shortens a leap to the step under way at `now`."""
        if self._steps <= 1 or not self.in_step or now >= self.step_end_s:
            return
        self._steps = self._steps_begun(now)
        self.step_end_s = self._stretch.end_s(self._stretch.done + self._steps)

    def _steps_begun(self, now: float) -> int:
        """Steps of the leap begun before `now`: one that ends at `now` exactly is the last of them."""
        stretch, most = self._stretch, self._steps
        elapsed = (now - self._start_s) / (self.step_end_s - self._start_s)
        steps = min(max(int(elapsed * most), 1), most)
        while steps > 1 and stretch.end_s(stretch.done + steps - 1) >= now:
            steps -= 1
        while steps < most and stretch.end_s(stretch.done + steps) < now:
            steps += 1
        return steps

    # --- scheduling -------------------------------------------------------------------------------------------

    def _schedule(self, now: float) -> None:
        pool = self.pool
        if self._decoding > 0:
            residue = self._tick % self._block_tokens
            while self._need[residue] > pool.free:
                self._preempt_newest(now)
            pool.take(self._need[residue])
        budget = self._step_tokens - self._decoding
        if self._partial is not None:
            budget -= self._continue(self._partial, budget, now)
        if self._waiting_count > 0 and not self._preempted:
            self._admit(budget)

    def _continue(self, seq: Sequence, budget: int, now: float) -> int:
        """The next chunk of the half-computed prompt, or its preemption; returns the tokens scheduled."""
        chunk = min(seq.target_tokens - seq.computed_tokens, budget)
        if not self._holdings.grow(seq, seq.computed_tokens + chunk):
            self._preempt_newest(now)
            return 0
        self._add_chunk(seq, chunk)
        return chunk

    def _admit(self, budget: int) -> None:
        """Waiting prompts go in, first come first served, while budget, sequences and blocks last."""
        waiting = self._waiting
        while budget > 0 and waiting and self._running < self._max_sequences:
            seq = waiting[0]
            if seq.state != WAITING:
                waiting.popleft()
                continue
            if not self._holdings.admit(seq):
                return
            waiting.popleft()
            self._waiting_count -= 1
            chunk = min(seq.target_tokens - seq.computed_tokens, budget)
            self._holdings.grow(seq, seq.computed_tokens + chunk)
            budget -= chunk
            self._enter_batch(seq)
            self._add_chunk(seq, chunk)

    def _enter_batch(self, seq: Sequence) -> None:
        self._serial += 1
        seq.serial = self._serial
        seq.state = PREFILL
        self._running += 1
        order = self._order
        if len(order) > 2 * self._running + 64:
            self._order = order = [s for s in order if s.state == PREFILL or s.state == DECODE]
        order.append(seq)

    def _add_chunk(self, seq: Sequence, chunk: int) -> None:
        self._chunk_seqs.append(seq)
        self._chunk_tokens.append(chunk)
        self._new_tokens += chunk
        self._step_pairs += chunk * (seq.computed_tokens + chunk / 2)
        self._partial = seq if seq.computed_tokens + chunk < seq.target_tokens else None

    def _preempt_newest(self, now: float) -> None:
        order = self._order
        while order[-1].state != PREFILL and order[-1].state != DECODE:
            order.pop()
        seq = order[-1]
        if seq.state == DECODE:
            self._leave_decode(seq)
            seq.last_token_s = now + self.front.lag_s
        self._leave_batch(seq, self._holdings.prefix_cache)
        order.pop()
        seq.state = WAITING
        seq.computed_tokens = 0
        seq.preemptions += 1
        self._total.preemptions += 1
        self._waiting.appendleft(seq)
        self._waiting_count += 1
        self._preempted.append(seq)

    def _leave_batch(self, seq: Sequence, keep: bool) -> None:
        self._holdings.release(seq, keep)
        if seq is self._partial:
            self._partial = None
        self._running -= 1

    # --- finishing a step -------------------------------------------------------------------------------------

    def _account_decodes(self, steps: int, decoding: int, end_s: float) -> None:
        """The decode side of the step under way: blocks, context, counters, gaps."""
        total = self._total
        tokens = steps * decoding
        total.output_tokens += tokens
        total.attended_pairs += steps * self._context_sum + decoding * (steps * (steps + 1) / 2)
        self._context_sum += tokens
        if self._chunk_seqs:
            if self.log is not None:
                self.log.steps(self._duration_s + self.front.rise_s, 0.0, 0, 1, self._tick)
            return
        if steps > 1:
            self.pool.take(self._blocks_needed(steps - 1))
            self._note_peak(self.pool.used)
        if self.log is not None:
            self._log_decodes(self.log, steps, end_s)
        self._stretch.done += steps

    def _log_decodes(self, log: StepLog, steps: int, end_s: float) -> None:
        """Steps of the stretch under way are gaps of all who decode."""
        stretch = self._stretch
        log.steps(stretch.step_s + self.front.rise_s, stretch.rise_s, stretch.done, steps, self._tick)

    def _fall_behind(self, steps: int, decoding: int) -> None:
        """Moves the front end's lag to the end of the step or leap; what readers see of a gap grows by its rise."""
        chunks = decoding
        for index in range(len(self._chunk_seqs)):
            seq = self._chunk_seqs[index]
            if seq.computed_tokens + self._chunk_tokens[index] == seq.target_tokens:
                chunks += 1
        chunk_s = chunks * self.cost.calibration.front_chunk_s
        self.front.steps_ended(self._start_s, self._ended_s, steps, chunk_s)

    def _account_step(self, steps: int) -> None:
        total = self._total
        total.steps += steps
        total.busy_s += self._ended_s - self._start_s
        if self._chunk_seqs:
            total.computed_tokens += self._new_tokens
            total.attended_pairs += self._step_pairs
            self._new_tokens = 0
            self._step_pairs = 0.0

    def _finish_decodes(self, result: StepResult) -> None:
        finishes = self._finishes
        while finishes and finishes[0][0] < self._tick:
            entry = heappop(finishes)
            seq = entry[2]
            if seq.last_tick == entry[0] and seq.state == DECODE:
                if not seq.aborting:
                    result.finished.append(seq)
                self._leave(seq, ABORTED if seq.aborting else FINISHED)

    def _finish_chunks(self, result: StepResult, end_s: float) -> None:
        for index in range(len(self._chunk_seqs)):
            seq = self._chunk_seqs[index]
            seq.computed_tokens += self._chunk_tokens[index]
            if seq.computed_tokens == seq.target_tokens and not seq.aborting:
                self._sample(seq, result, end_s)
        self._chunk_seqs = []
        self._chunk_tokens = []

    def _sample(self, seq: Sequence, result: StepResult, end_s: float) -> None:
        """A prompt is computed: its next token comes out, and it decodes unless that was the last."""
        if seq.generated_tokens == 0:
            result.first.append(seq)
            self._total.prompt_tokens += seq.prompt_tokens
        if self._list_tokens:
            result.tokens.append(seq)
        seq.generated_tokens += 1
        self._total.output_tokens += 1
        if seq.generated_tokens < seq.output_tokens:
            self._sampled(seq, end_s)
            return
        if self.log is not None and seq.last_token_s >= 0.0:
            self.log.gap(seq, end_s - seq.last_token_s)
        result.finished.append(seq)
        self._leave(seq, FINISHED)

    def _sampled(self, seq: Sequence, end_s: float) -> None:
        """The token that a computed prompt gave came out at `end_s`; more will follow."""
        self._enter_decode(seq)
        if self.log is not None:
            self.log.enter(seq, end_s, self._tick)

    def _finish_aborts(self) -> None:
        for seq in self._aborting:
            if seq.alive:
                self._leave(seq, ABORTED)
        self._aborting = []

    def _enter_decode(self, seq: Sequence) -> None:
        tick, tokens = self._tick, seq.computed_tokens
        seq.state = DECODE
        seq.start_tick = tick
        seq.last_tick = tick + seq.output_tokens - seq.generated_tokens - 1
        heappush(self._finishes, (seq.last_tick, seq.serial, seq))
        self._need[(tick - tokens) % self._block_tokens] += 1
        self._decoding += 1
        self._context_sum += tokens
        self._stretch.valid = False

    def _leave_decode(self, seq: Sequence) -> None:
        """Brings `seq` up to date and takes it out of the decoding batch."""
        tick = self._tick
        if self.log is not None:
            self.log.leave(seq, tick)
        self._need[(seq.start_tick - seq.computed_tokens) % self._block_tokens] -= 1
        elapsed = tick - seq.start_tick
        seq.generated_tokens += elapsed
        seq.computed_tokens += elapsed
        self._holdings.settle(seq)
        self._decoding -= 1
        self._context_sum -= seq.computed_tokens
        self._stretch.valid = False

    def _leave(self, seq: Sequence, state: int) -> None:
        """`seq` ends, at a step boundary."""
        if seq.state == DECODE:
            self._leave_decode(seq)
        self._leave_batch(seq, False)
        seq.state = state
        self._stretch.valid = False

    def _note_peak(self, used: int) -> None:
        if used > self._total.kv_peak_blocks:
            self._total.kv_peak_blocks = used


def check_startable(name: str, profile: EngineProfile, kv_tokens: int) -> None:
    """Raises `BadInputError` for settings with which the engine would not start."""
    if profile.kind != "sglang" and profile.step_tokens < profile.max_sequences:
        raise BadInputError(
            f"{name}: step_tokens {profile.step_tokens} is below max_sequences {profile.max_sequences}",
            hint="every running sequence needs one token of a step's budget; raise the one or lower the other",
        )
    if kv_tokens < profile.context_tokens:
        raise BadInputError(
            f"{name}: {kv_tokens} tokens of KV cache hold no context of {profile.context_tokens}",
            hint="give the KV cache more memory, or lower context_tokens",
        )
