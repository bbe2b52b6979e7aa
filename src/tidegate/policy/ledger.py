"""The ledger: what each instance holds of our work, joined with its last scrape.

Own work is exact and counted at the decision, never at the next scrape, so that a burst cannot land on one instance.
What others put there is the scraped KV use beyond our own claims; that part of the picture ages: past
`STALE_AFTER_S` it halves every `HALF_LIFE_S`, until only the ledger's own view is left. A stale scrape therefore
never stops dispatch, and an absent metric is unknown (`None`), never 0.
"""

from __future__ import annotations

from typing import Final

from tidegate.policy import lifecycle
from tidegate.policy.breaker import Breaker
from tidegate.policy.pace import PrefillRate
from tidegate.spec import BreakerSpec

STALE_AFTER_S: Final = 1.0
HALF_LIFE_S: Final = 2.0
DEFAULT_BLOCK_TOKENS: Final = 16


class EngineSample:
    """One scrape of an engine's metrics. `None` where the engine does not say."""

    __slots__ = ("block_tokens", "capacity_blocks", "kv_used_fraction", "preemptions", "running", "waiting")

    def __init__(
        self,
        running: float | None = None,
        waiting: float | None = None,
        kv_used_fraction: float | None = None,
        capacity_blocks: float | None = None,
        block_tokens: float | None = None,
        preemptions: float | None = None,
    ) -> None:
        self.running = running
        self.waiting = waiting
        self.kv_used_fraction = kv_used_fraction
        self.capacity_blocks = capacity_blocks
        self.block_tokens = block_tokens
        self.preemptions = preemptions


class Instance:
    """One engine server in the ledger. Claims are made and released by `Attempt`s only."""

    __slots__ = (
        "block_tokens", "breaker", "capacity_blocks", "in_flight", "kind", "load", "long_tokens", "model", "name",
        "other_blocks", "own_blocks", "prefill_rate", "prefill_tokens", "sample", "sampled_s", "state", "url",
    )  # fmt: skip

    def __init__(self, name: str, url: str, model: str, kind: str = "vllm", breaker: BreakerSpec | None = None) -> None:
        self.name = name
        self.url = url
        self.model = model
        self.kind = kind
        self.state = lifecycle.LAUNCHING
        self.breaker = Breaker(breaker or BreakerSpec())
        self.block_tokens = DEFAULT_BLOCK_TOKENS
        self.capacity_blocks = -1
        """Total KV blocks; -1 while unknown."""
        self.in_flight = 0
        self.own_blocks = 0
        """KV blocks claimed for our requests in flight: prompt + expected output."""
        self.prefill_tokens = 0
        """Prompt tokens of our requests whose first token is not out yet."""
        self.long_tokens = 0
        """Those of them that belong to long prompts."""
        self.prefill_rate = PrefillRate()
        self.other_blocks = 0.0
        self.load = 0.0
        """Active KV blocks plus queued prefill, in blocks, as of the last sample: what routing compares. Renewed with
        each change, because every routing decision reads all of them."""
        self.sampled_s = -1.0
        self.sample: EngineSample | None = None

    @property
    def ready(self) -> bool:
        """Whether it may receive work."""
        return self.state == lifecycle.READY

    def blocks_for(self, tokens: int) -> int:
        """KV blocks that hold `tokens`."""
        return -(-tokens // self.block_tokens)

    def claim(self, blocks: int, prompt_tokens: int, long: bool, now: float) -> None:
        """Counts an attempt, at the decision."""
        self.in_flight += 1
        self.own_blocks += blocks
        self.prefill_rate.began(now, self.prefill_tokens)
        self.prefill_tokens += prompt_tokens
        if long:
            self.long_tokens += prompt_tokens
        self._weigh()

    def prefilled(self, prompt_tokens: int, long: bool) -> None:
        """A prompt no longer counts as prefill."""
        self.prefill_tokens -= prompt_tokens
        if long:
            self.long_tokens -= prompt_tokens
        self._weigh()

    def release(self, blocks: int) -> None:
        """Gives an attempt's slot and KV claim back; its prefill is given back by `prefilled`."""
        self.in_flight -= 1
        self.own_blocks -= blocks
        self._weigh()

    def sampled(self, sample: EngineSample, now: float) -> None:
        """Takes a scrape in."""
        self.sample = sample
        self.sampled_s = now
        if sample.block_tokens is not None and sample.block_tokens >= 1:
            self.block_tokens = int(sample.block_tokens)
        if sample.capacity_blocks is not None and sample.capacity_blocks >= 1:
            self.capacity_blocks = int(sample.capacity_blocks)
        used = sample.kv_used_fraction
        if used is None or self.capacity_blocks < 0:
            self.other_blocks = 0.0
        else:
            self.other_blocks = max(0.0, used * self.capacity_blocks - self.own_blocks)
        self._weigh()

    def load_at(self, now: float) -> float:
        """`load`, with what others hold fading as the sample ages."""
        if self.other_blocks == 0.0 or now - self.sampled_s <= STALE_AFTER_S:
            return self.load
        return self.active_blocks(now) + self.prefill_tokens / self.block_tokens

    def _weigh(self) -> None:
        self.load = self.own_blocks + self.other_blocks + float(self.prefill_tokens) / float(self.block_tokens)

    def active_blocks(self, now: float) -> float:
        """KV blocks in use or spoken for, as far as this gateway knows at `now`."""
        if self.other_blocks == 0.0:
            return float(self.own_blocks)
        age = now - self.sampled_s - STALE_AFTER_S
        if age <= 0.0:
            return self.own_blocks + self.other_blocks
        fading: float = 0.5 ** (age / HALF_LIFE_S)
        return self.own_blocks + self.other_blocks * fading
