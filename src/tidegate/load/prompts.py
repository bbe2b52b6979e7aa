"""Request bodies: prompts of plain words with a wanted token count, the same for the same plan and seed.

Four bytes count as one token, exactly so for emulated engines and about so for English text. A prompt opens with
words of its own, so that no prefix cache knows it; a plan with `prefix_hashes` is made of blocks whose text is a
function of their hash, so that equal hashes are equal text.
"""

from __future__ import annotations

from typing import Final

import msgspec

from tidegate.rng import Stream
from tidegate.traffic.plan import PlannedRequest

BYTES_PER_TOKEN: Final = 4
TEMPLATE_TOKENS: Final = 4
"""What an emulated engine's chat template adds to one user message: a role, and the opening of the answer."""
_POOL_BYTES: Final = 1 << 18
_SPREAD: Final = 0x9E3779B97F4A7C15
_WORDS: Final = (
    "after", "anchor", "basin", "before", "bridge", "buoy", "calm", "cargo", "chart", "clear", "coast",
    "course", "crew", "current", "deck", "deep", "drift", "ebb", "engine", "estuary", "even", "ferry",
    "first", "flood", "gate", "gauge", "harbour", "heavy", "high", "hold", "inlet", "island", "keel",
    "lantern", "level", "light", "line", "lock", "low", "map", "marsh", "mast", "mile", "moon",
    "morning", "narrow", "night", "north", "ocean", "open", "order", "pass", "pilot", "port", "quiet",
    "rain", "reach", "river", "rope", "sail", "sand", "signal", "slack", "slow", "south", "spring",
    "storm", "stream", "surge", "tide", "time", "tower", "vessel", "watch", "water", "wave", "west",
    "wharf", "wind", "winter", "yard",
)  # fmt: skip


class PromptBook:
    """Makes request bodies for one run."""

    def __init__(self, seed: int, model: str, *, ignore_eos: bool = True) -> None:
        self._seed = seed
        self._pool = _word_pool(Stream(seed, "load/words"))
        self._head = b'{"model":' + msgspec.json.encode(model) + b',"messages":[{"role":"user","content":"'
        # The planned length is the truth about the answer; without this an engine may stop early.
        self._tail = b',"ignore_eos":true}' if ignore_eos else b"}"

    def body(self, plan: PlannedRequest, purpose: str = "run") -> bytes:
        """The JSON body of a chat completion. `purpose` keeps warm-up prompts apart from measured ones."""
        options = b',"stream":true,"stream_options":{"include_usage":true}' if plan.stream else b',"stream":false'
        return b'%b%b"}],"max_tokens":%d%b%b' % (
            self._head,
            self.prompt(plan, purpose),
            plan.output_tokens,
            options,
            self._tail,
        )

    def prompt(self, plan: PlannedRequest, purpose: str = "run") -> bytes:
        """The user message: plain words that need no escaping in JSON."""
        size = max(1, plan.prompt_tokens - TEMPLATE_TOKENS) * BYTES_PER_TOKEN
        if not plan.prefix_hashes:
            opening = b"%b %d of seed %d " % (purpose.encode(), plan.index, self._seed)
            return self._text(opening, plan.index, size)
        block_bytes = plan.prefix_block_tokens * BYTES_PER_TOKEN
        blocks = [self._text(b"block %d " % value, value, block_bytes) for value in plan.prefix_hashes]
        return b"".join(blocks)[:size].ljust(size, b".")

    def _text(self, opening: bytes, key: int, size: int) -> bytes:
        start = (key * _SPREAD) % _POOL_BYTES
        pieces = [opening, self._pool[start:]]
        missing = size - len(opening) - len(pieces[1])
        while missing > 0:
            pieces.append(self._pool)
            missing -= len(self._pool)
        return b"".join(pieces)[:size]


def _word_pool(stream: Stream) -> bytes:
    words: list[str] = []
    size = 0
    while size < _POOL_BYTES:
        word = _WORDS[stream.integer(0, len(_WORDS) - 1)]
        words.append(word)
        size += len(word) + 1
    return (" ".join(words) + " ").encode()[:_POOL_BYTES]
