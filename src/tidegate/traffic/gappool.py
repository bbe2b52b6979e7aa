"""Inter-token gaps pooled while a run goes on, for runs too large to keep them raw (the twin's).

In: gaps in seconds with their phase and prompt length. Out: the `gaps` and `gaps_by_group` of a `RunRecord`.
"""

from __future__ import annotations

from typing import Final

from tidegate.traffic.histogram import Histogram

SHORT_BELOW_TOKENS: Final = 512
LONG_ABOVE_TOKENS: Final = 4096


def length_class(prompt_tokens: int) -> str:
    """`short` (< 512 prompt tokens), `long` (> 4,096) or `mixed`."""
    if prompt_tokens < SHORT_BELOW_TOKENS:
        return "short"
    return "long" if prompt_tokens > LONG_ABOVE_TOKENS else "mixed"


class GapPool:
    """One histogram per phase and length class; `pool.of(plan)` is the one to record a request's gaps in."""

    __slots__ = ("_groups",)

    def __init__(self) -> None:
        self._groups: dict[str, Histogram] = {}

    def of(self, phase: str, prompt_tokens: int) -> Histogram:
        """The histogram for requests of this phase and prompt length; look it up once a request."""
        key = phase + "/" + length_class(prompt_tokens)
        histogram = self._groups.get(key)
        if histogram is None:
            histogram = Histogram()
            self._groups[key] = histogram
        return histogram

    def by_group(self) -> dict[str, dict[int, int]]:
        """What goes into `RunRecord.gaps_by_group`."""
        return {key: group.counts for key, group in sorted(self._groups.items())}

    def pooled(self) -> dict[int, int]:
        """What goes into `RunRecord.gaps`."""
        whole = Histogram()
        for group in self._groups.values():
            whole.merge(group.counts)
        return whole.counts
