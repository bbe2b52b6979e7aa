"""One planned request: fixed before a run begins, in load driver and twin alike."""

from __future__ import annotations

from msgspec import Struct


class PlannedRequest(Struct, frozen=True, gc=False):
    """What is sent and when. `output_tokens` is the truth about the answer; no policy ever sees it."""

    index: int
    at_s: float
    """Intended send time, seconds since the start of the run."""
    prompt_tokens: int
    output_tokens: int
    """How long the answer will be; asked for as `max_tokens`."""
    phase: str = ""
    tenant: str = ""
    stream: bool = True
    prefix_hashes: tuple[int, ...] = ()
    """Identity of the prompt's leading blocks (`prefix_block_tokens` each); equal hashes, equal text."""
    prefix_block_tokens: int = 512
