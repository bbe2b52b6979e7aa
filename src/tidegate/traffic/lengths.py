"""Prompt and answer lengths, drawn from quantile tables fitted to public traces.

In: a `LengthSpec` and streams. Out: (prompt tokens, output tokens). `lengths.json` holds each trace's quantiles
at `PROBABILITIES`, its source and its licence; a draw interpolates linearly between them. Prompt and answer are
drawn independently, because in all three traces their rank correlation is below 0.08 in size.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Final

import msgspec

from tidegate.errors import BadInputError
from tidegate.rng import Stream, Streams
from tidegate.spec.traffic import LengthSpec

PROBABILITIES: Final = (*(step / 200 for step in range(200)), 0.999, 1.0)
"""Every half percent, and two points that keep the tail."""


class FittedLengths(msgspec.Struct, frozen=True):
    """One trace's lengths as quantiles at `PROBABILITIES`, in tokens."""

    source: str
    licence: str
    rows: int
    prompt: list[int]
    output: list[int]


def fit_quantiles(values: Sequence[int]) -> list[int]:
    """The table that ships for a trace's column: its values at `PROBABILITIES`."""
    ranked = sorted(values)
    return [ranked[round((len(ranked) - 1) * probability)] for probability in PROBABILITIES]


@cache
def fitted(name: str) -> FittedLengths:
    """The fitted lengths called `name` (`azure-conv`, `azure-code`, `mooncake`)."""
    text = resources.files("tidegate.traffic").joinpath("lengths.json").read_bytes()
    tables = msgspec.json.decode(text, type=dict[str, FittedLengths])
    if name not in tables:
        raise BadInputError(f"{name!r} is not a length distribution", hint="one of " + ", ".join(sorted(tables)))
    return tables[name]


def quantile(table: Sequence[int], probability: float) -> float:
    """A value of a quantile table at `probability` in [0, 1], linear between its points."""
    right = bisect_right(PROBABILITIES, probability)
    if right >= len(PROBABILITIES):
        return float(table[-1])
    low, high = PROBABILITIES[right - 1], PROBABILITIES[right]
    return table[right - 1] + (table[right] - table[right - 1]) * (probability - low) / (high - low)


class LengthSource:
    """Draws lengths for one run; prompts, answers and the choice of long prompts have streams of their own."""

    def __init__(self, spec: LengthSpec, streams: Streams, purpose: str = "") -> None:
        """`purpose` sets the streams' names apart from those of the measured requests."""
        check_lengths(spec)
        self._spec = spec
        table = None if spec.distribution == "uniform" else fitted(spec.distribution)
        self._prompt_table = None if table is None else table.prompt
        self._output_table = None if table is None else table.output
        self._prompts = streams.stream(purpose + "lengths/prompt")
        self._outputs = streams.stream(purpose + "lengths/output")
        self._long = streams.stream(purpose + "lengths/long")

    def draw(self) -> tuple[int, int]:
        """(prompt tokens, output tokens) of the next request."""
        return self._prompt(), self._output()

    def _prompt(self) -> int:
        spec = self._spec
        # Both are drawn every time, so that another `long_share` leaves the other prompts as they were.
        ordinary = _draw(self._prompts, self._prompt_table, spec.prompt_min_tokens, spec.prompt_max_tokens)
        is_long = self._long.chance(spec.long_share)
        long = self._long.integer(spec.long_min_tokens, spec.long_max_tokens)
        return long if is_long else ordinary

    def _output(self) -> int:
        spec = self._spec
        return _draw(self._outputs, self._output_table, spec.output_min_tokens, spec.output_max_tokens)


def _draw(stream: Stream, table: Sequence[int] | None, low: int, high: int) -> int:
    if table is None:
        return stream.integer(low, high)
    return min(high, max(low, round(quantile(table, stream.uniform()))))


def check_lengths(spec: LengthSpec) -> None:
    """Raises `BadInputError` when a range is upside down."""
    for what, low, high in (
        ("prompt", spec.prompt_min_tokens, spec.prompt_max_tokens),
        ("output", spec.output_min_tokens, spec.output_max_tokens),
        ("long", spec.long_min_tokens, spec.long_max_tokens),
    ):
        if low > high:
            raise BadInputError(
                f"traffic.lengths: {what}_min ({low}) is above {what}_max ({high})", hint="swap the two"
            )
