"""Paged KV blocks: who holds them, what is cached, what is evicted next (vLLM V1's block pool).

A block is held, or free. Free blocks wait in one queue in the order they were given back and are taken from its
head; a free block whose content is known by hash stays usable as cached prefix until the queue reaches it. So
"cached" costs nothing and the least recently used content goes first. Blocks that behave alike are one `Run`, which
keeps all of this O(1) per request instead of per block:

    blank   free, content worthless            merges with a blank neighbour
    owned   free, content of one preempted sequence, which may take back what is left of it (its tail goes first)
    cached  named by a prefix hash; held while `refs` > 0, else free; evicted whole

Conservation (invariant 5): Σ held + `free` = `total`, and `free` = Σ blocks in the queue, after every call.
"""

from __future__ import annotations

from typing import Final

BLANK: Final = 0
OWNED: Final = 1
CACHED: Final = 2


class Run:
    """Blocks that behave alike; its place in the queue is known only to the pool."""

    __slots__ = ("blocks", "key", "kind", "newer", "older", "queued", "refs")

    def __init__(self, kind: int, blocks: int, key: int, refs: int) -> None:
        self.kind = kind
        self.blocks = blocks
        self.key = key
        self.refs = refs
        self.queued = False
        self.older: Run | None = None
        self.newer: Run | None = None


class BlockPool:
    """All KV blocks of one instance."""

    __slots__ = ("_cache", "_newest", "_oldest", "free", "total")

    def __init__(self, total: int) -> None:
        self.total = total
        self.free = 0
        """Blocks that can be taken now, cached ones included."""
        self._cache: dict[int, Run] = {}
        self._oldest: Run | None = None
        self._newest: Run | None = None
        if total > 0:
            self._enqueue(Run(BLANK, total, 0, 0))

    @property
    def used(self) -> int:
        """Blocks held by sequences."""
        return self.total - self.free

    @property
    def cached_free(self) -> int:
        """Free blocks that a prefix hash can still claim."""
        return sum(run.blocks for run in self._cache.values() if run.refs == 0)

    def take(self, blocks: int) -> None:
        """Takes `blocks` ≤ `free`, oldest first, evicting cached content on the way."""
        if blocks > self.free:
            raise RuntimeError(f"{blocks} KV blocks wanted, {self.free} free")
        self.free -= blocks
        while blocks > 0:
            run = self._oldest
            assert run is not None
            if run.kind == CACHED:
                del self._cache[run.key]
                run.kind = BLANK
            if run.blocks > blocks:
                run.blocks -= blocks
                return
            blocks -= run.blocks
            self._unlink(run)
            run.blocks = 0

    def give(self, blocks: int) -> None:
        """Gives `blocks` of worthless content back."""
        if blocks == 0:
            return
        newest = self._newest
        if newest is not None and newest.kind == BLANK:
            newest.blocks += blocks
            self.free += blocks
        else:
            self._enqueue(Run(BLANK, blocks, 0, 0))

    def give_owned(self, blocks: int) -> Run:
        """Gives `blocks` back; their owner may `reclaim` what nobody took meanwhile, or must `disown` them."""
        run = Run(OWNED, blocks, 0, 0)
        self._enqueue(run)
        return run

    def reclaim(self, run: Run) -> None:
        """The owner takes the blocks left in `run` (`run.blocks`, counted from their start)."""
        if run.queued:
            self._unlink(run)
            self.free -= run.blocks

    def disown(self, run: Run) -> None:
        """Nobody will come back for `run`."""
        run.kind = BLANK

    def find(self, key: int) -> Run | None:
        """The blocks cached under `key`, held or free."""
        return self._cache.get(key)

    def hold(self, run: Run) -> None:
        """One more sequence uses the cached `run`."""
        if run.refs == 0:
            self._unlink(run)
            self.free -= run.blocks
        run.refs += 1

    def release(self, run: Run) -> None:
        """One sequence less uses it; unused, it stays cached until evicted."""
        run.refs -= 1
        if run.refs == 0:
            self._enqueue(run)

    def register(self, key: int, blocks: int) -> Run | None:
        """`blocks` that a sequence holds become cached under `key`, held once; None if `key` is cached already."""
        if key in self._cache:
            return None
        run = Run(CACHED, blocks, key, 1)
        self._cache[key] = run
        return run

    def queue(self) -> list[Run]:
        """Free runs, next to be taken first; for tests and statistics."""
        runs: list[Run] = []
        run = self._oldest
        while run is not None:
            runs.append(run)
            run = run.newer
        return runs

    def _enqueue(self, run: Run) -> None:
        run.queued = True
        run.older = self._newest
        run.newer = None
        if self._newest is None:
            self._oldest = run
        else:
            self._newest.newer = run
        self._newest = run
        self.free += run.blocks

    def _unlink(self, run: Run) -> None:
        run.queued = False
        if run.older is None:
            self._oldest = run.newer
        else:
            run.older.newer = run.newer
        if run.newer is None:
            self._newest = run.older
        else:
            run.newer.older = run.older
        run.older = run.newer = None
