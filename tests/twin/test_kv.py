"""The KV block pool: nothing is lost, nothing is double, the oldest content goes first."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from tidegate.twin.holdings import Holdings
from tidegate.twin.kv import BlockPool, Run
from tidegate.twin.sequence import Sequence

TOTAL = 60


class PoolMachine(RuleBasedStateMachine):
    """Sequences take, share, preempt and give back in any order, beside a plain count of what is held."""

    held = Bundle("held")
    shared = Bundle("shared")
    owned = Bundle("owned")

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(TOTAL)
        self.private = 0
        self.holders: dict[int, int] = {}
        self.sizes: dict[int, int] = {}

    @rule(target=held, blocks=st.integers(0, 12))
    def take(self, blocks: int) -> int:
        blocks = min(blocks, self.pool.free)
        self.pool.take(blocks)
        self.private += blocks
        return blocks

    @rule(blocks=consumes(held))
    def give(self, blocks: int) -> None:
        self.pool.give(blocks)
        self.private -= blocks

    @rule(target=shared, blocks=consumes(held), key=st.integers(1, 6))
    def register(self, blocks: int, key: int) -> Run | None:
        run = self.pool.register(key, blocks) if blocks > 0 else None
        if run is None:
            self.pool.give(blocks)
        else:
            self.holders[key], self.sizes[key] = 1, blocks
        self.private -= blocks
        return run

    @rule(target=shared, key=st.integers(1, 6))
    def hit(self, key: int) -> Run | None:
        run = self.pool.find(key)
        if run is not None:
            self.pool.hold(run)
            self.holders[key] = self.holders.get(key, 0) + 1
        return run

    @rule(run=consumes(shared))
    def release(self, run: Run | None) -> None:
        if run is not None:
            self.holders[run.key] -= 1
            self.pool.release(run)

    @rule(target=owned, blocks=consumes(held))
    def preempt(self, blocks: int) -> Run | None:
        self.private -= blocks
        return self.pool.give_owned(blocks) if blocks > 0 else None

    @rule(target=held, run=consumes(owned))
    def resume(self, run: Run | None) -> int:
        if run is None or not run.queued:
            return 0
        self.pool.reclaim(run)
        self.private += run.blocks
        return run.blocks

    @invariant()
    def conserved(self) -> None:
        shared = sum(self.sizes[key] for key, count in self.holders.items() if count > 0)
        assert self.private + shared + self.pool.free == TOTAL
        assert sum(run.blocks for run in self.pool.queue()) == self.pool.free
        assert 0 <= self.pool.cached_free <= self.pool.free
        assert all(self.pool.find(key) is not None for key, count in self.holders.items() if count > 0)


TestPool = PoolMachine.TestCase


def _cached(pool: BlockPool, key: int, blocks: int) -> None:
    pool.take(blocks)
    run = pool.register(key, blocks)
    assert run is not None
    pool.release(run)


def test_the_least_recently_used_prefix_is_evicted_first() -> None:
    pool = BlockPool(10)
    for key in (1, 2):
        _cached(pool, key, 4)
    first = pool.find(1)
    assert first is not None
    pool.hold(first)
    pool.release(first)
    pool.take(3)
    assert pool.find(1) is not None
    assert pool.find(2) is None


def test_a_preempted_sequence_finds_the_start_of_what_it_gave_back() -> None:
    pool = BlockPool(10)
    pool.take(10)
    left = pool.give_owned(6)
    pool.take(2)
    assert left.blocks == 4
    pool.reclaim(left)
    assert pool.free == 0


def test_taking_more_than_is_free_is_a_defect_and_changes_nothing() -> None:
    pool = BlockPool(4)
    with pytest.raises(RuntimeError, match="5 KV blocks wanted, 4 free"):
        pool.take(5)
    assert pool.free == 4


def _computed(holdings: Holdings, seq: Sequence, tokens: int) -> None:
    assert holdings.grow(seq, tokens)
    seq.computed_tokens = tokens


def test_a_preempted_sequence_takes_its_own_blocks_back() -> None:
    holdings = Holdings(BlockPool(40), 16, True)
    seq = Sequence(0, 200, 5, (1, 2), 64)
    assert holdings.admit(seq)
    _computed(holdings, seq, 96)
    holdings.release(seq, keep=True)
    seq.preemptions = 1
    assert holdings.admit(seq)
    assert seq.computed_tokens == 96
    assert holdings.pool.used == 6


def test_own_blocks_do_not_follow_on_a_longer_prefix_that_another_cached() -> None:
    holdings = Holdings(BlockPool(40), 16, True)
    first, second = Sequence(0, 200, 5, (1, 2), 64), Sequence(1, 200, 5, (1, 2), 64)
    assert holdings.admit(first)
    _computed(holdings, first, 96)
    holdings.release(first, keep=True)
    assert holdings.admit(second)
    _computed(holdings, second, 200)
    assert holdings.admit(first)
    assert first.computed_tokens == 128
