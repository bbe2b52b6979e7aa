"""What each sequence holds of the KV cache: shared prefix runs, private blocks, and leftovers of a preemption.

vLLM V1's rules: only full blocks are shared; the last token of a prompt is never taken from the cache, so that there
is something to sample from; a prefix becomes findable as soon as the chunk that completes it is scheduled; blocks are
given back last ones first, so that prefixes stay cached longest. One difference: prefix runs (`prefix_block_tokens`,
often more than one block) are shared and evicted whole.
"""

from __future__ import annotations

from tidegate.twin.kv import BlockPool
from tidegate.twin.sequence import Sequence


class Holdings:
    """The block accounts of one instance's sequences."""

    __slots__ = ("block_tokens", "hit_tokens", "pool", "prefix_cache", "query_tokens")

    def __init__(self, pool: BlockPool, block_tokens: int, prefix_cache: bool) -> None:
        self.pool = pool
        self.block_tokens = block_tokens
        self.prefix_cache = prefix_cache
        self.query_tokens = 0
        """Prompt tokens looked up, and found, at first admissions."""
        self.hit_tokens = 0

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold `tokens`."""
        return -(-tokens // self.block_tokens)

    def shared(self, seq: Sequence) -> int:
        """Blocks of the prefix runs that `seq` holds."""
        return len(seq.runs) * (seq.prefix_block_tokens // self.block_tokens) if seq.runs else 0

    def grow(self, seq: Sequence, reached: int) -> bool:
        """Takes the blocks that `seq`, in PREFILL, lacks for `reached` tokens; else nothing and False."""
        wanted = -(-reached // self.block_tokens) - self.shared(seq) - seq.blocks
        if wanted > self.pool.free:
            return False
        self.pool.take(wanted)
        seq.blocks += wanted
        if seq.registered < len(seq.prefix_hashes) and self.prefix_cache:
            self._register(seq, reached)
        return True

    def settle(self, seq: Sequence) -> None:
        """Sets the private blocks of a sequence that decoded up to `computed_tokens`."""
        seq.blocks = self.blocks_for(seq.computed_tokens) - self.shared(seq)

    def admit(self, seq: Sequence) -> bool:
        """Takes what is cached of `seq`'s tokens and sets `computed_tokens`; False, and nothing, unless all fits."""
        pool = self.pool
        hits, idle, own = 0, 0, 0
        leftover = seq.leftover
        if self.prefix_cache and seq.prefix_hashes:
            hits, idle = self._cached_prefix(seq)
        run_blocks = seq.prefix_block_tokens // self.block_tokens
        if leftover is not None and leftover.queued and hits == seq.registered:
            own = min(leftover.blocks, (seq.target_tokens - 1) // self.block_tokens - hits * run_blocks)
        if self.blocks_for(seq.target_tokens) - hits * run_blocks > pool.free - idle:
            return False
        if hits > 0:
            self._hold_prefix(seq, hits)
        if leftover is not None:
            self._take_leftover(seq, own)
        seq.registered = hits
        seq.computed_tokens = (hits * run_blocks + own) * self.block_tokens
        if seq.preemptions == 0 and self.prefix_cache:
            self.query_tokens += seq.prompt_tokens
            self.hit_tokens += seq.computed_tokens
        return True

    def release(self, seq: Sequence, keep: bool) -> None:
        """Gives everything back. `keep` lets `seq` find its own full blocks again, as long as nobody takes them."""
        pool = self.pool
        if keep and seq.registered == len(seq.runs):
            full = seq.computed_tokens // self.block_tokens - self.shared(seq)
            pool.give(seq.blocks - full)
            if full > 0:
                seq.leftover = pool.give_owned(full)
        else:
            pool.give(seq.blocks)
        seq.blocks = 0
        if seq.runs:
            for index in range(len(seq.runs) - 1, -1, -1):
                pool.release(seq.runs[index])
            seq.runs = []

    def forget(self, seq: Sequence) -> None:
        """`seq` will not come back for its leftover."""
        if seq.leftover is not None:
            self.pool.disown(seq.leftover)
            seq.leftover = None

    def cached_tokens(self, seq: Sequence) -> int:
        """Tokens of `seq`'s prompt that are cached now."""
        if not self.prefix_cache or not seq.prefix_hashes:
            return 0
        return self._cached_prefix(seq)[0] * seq.prefix_block_tokens

    def _cached_prefix(self, seq: Sequence) -> tuple[int, int]:
        """How many leading prefix runs are cached, and how many of their blocks are free now."""
        most = min(len(seq.prefix_hashes), (seq.target_tokens - 1) // seq.prefix_block_tokens)
        idle = 0
        for index in range(most):
            run = self.pool.find(seq.prefix_hashes[index])
            if run is None:
                return index, idle
            if run.refs == 0:
                idle += run.blocks
        return most, idle

    def _hold_prefix(self, seq: Sequence, hits: int) -> None:
        for index in range(hits):
            run = self.pool.find(seq.prefix_hashes[index])
            assert run is not None
            self.pool.hold(run)
            seq.runs.append(run)

    def _take_leftover(self, seq: Sequence, blocks: int) -> None:
        """Takes back the first `blocks` of what a preemption left; the rest is worthless."""
        leftover = seq.leftover
        assert leftover is not None
        seq.leftover = None
        if blocks == 0:
            self.pool.disown(leftover)
            return
        self.pool.reclaim(leftover)
        self.pool.give(leftover.blocks - blocks)
        seq.blocks = blocks

    def _register(self, seq: Sequence, reached: int) -> None:
        """Prefix runs within the first `reached` tokens become findable."""
        size = seq.prefix_block_tokens
        reached = min(reached, seq.prompt_tokens)
        while seq.registered < len(seq.prefix_hashes) and (seq.registered + 1) * size <= reached:
            # Only an unbroken chain is shared: behind a run that is another's, ours stay private.
            if seq.registered == len(seq.runs):
                run = self.pool.register(seq.prefix_hashes[seq.registered], size // self.block_tokens)
                if run is not None:
                    seq.runs.append(run)
                    seq.blocks -= run.blocks
            seq.registered += 1
