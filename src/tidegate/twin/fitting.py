"""Fits the constants of a `Calibration` to measured step times, first tokens and closed loops.

In: points measured on one engine. Out: constants by weighted least squares on relative errors, so that a step of 5 ms
counts as much as one of 200 ms. What a kind of point does not show keeps its neutral value: without closed loops above
the front end's ceiling, for example, the front end costs nothing.
"""

from __future__ import annotations

from typing import Final

from tidegate.twin.calibration import Calibration
from tidegate.twin.cost import StepCost

FRONT_BOUND: Final = 1.1
"""A closed loop this much slower than its engine's steps is bound by the front end."""


QUIET_STREAMS: Final = 128
"""So few streams no API server seen so far was too slow for."""
BULK_STEPS: Final = 8
"""A closed loop whose prompts fill so many steps tells the rate of prefill in bulk."""


class StepPoint:
    """A measured step: `new` prompt tokens on an empty cache beside `batch` decodes at mean context `context`."""

    __slots__ = ("batch", "context", "new", "seconds")

    def __init__(self, new: int, batch: int, context: float, seconds: float) -> None:
        self.new = new
        self.batch = batch
        self.context = context
        self.seconds = seconds

    def pairs(self) -> float:
        """Query-key pairs of the prompt."""
        return self.new * self.new / 2


class LoopPoint:
    """A closed loop: `streams` prompts of `prompt` tokens sent at once, all prefilled after `prefill_s` seconds, then
    decoding at mean context `context`, each with a token every `itl_s`."""

    __slots__ = ("context", "itl_s", "prefill_s", "prompt", "streams")

    def __init__(self, streams: int, prompt: int, context: float, itl_s: float, prefill_s: float) -> None:
        self.streams = streams
        self.prompt = prompt
        self.context = context
        self.itl_s = itl_s
        self.prefill_s = prefill_s


class Measured:
    """Everything measured on one engine. Each `StepPoint` list may be empty; each belongs to its own `StepCost`."""

    __slots__ = ("decode", "first_tokens", "loops", "mixed")

    def __init__(self) -> None:
        self.decode: list[tuple[StepCost, StepPoint]] = []
        self.mixed: list[tuple[StepCost, StepPoint]] = []
        self.first_tokens: list[tuple[StepCost, int, float]] = []
        """(cost, prompt tokens, TTFT in seconds) on an idle server over HTTP."""
        self.loops: list[tuple[StepCost, LoopPoint]] = []


def fit(measured: Measured) -> Calibration:
    """The constants that describe `measured` best. The costs in it must be uncalibrated."""
    fitted = Calibration()
    _fit_decode(measured, fitted)
    _fit_prefill(measured, fitted)
    _fit_ingest(measured, fitted)
    _fit_front(measured, fitted)
    return fitted


def _fit_decode(measured: Measured, fitted: Calibration) -> None:
    rows = [([c.decode_s(p.batch, p.context), 1.0, float(p.batch)], p.seconds) for c, p in measured.decode]
    if not rows:
        rows = _quiet_loops(measured)
    if len(rows) >= 3:
        found = least_squares(rows)
        fitted.decode_factor, fitted.decode_constant_s, fitted.decode_stream_s = found[0], found[1], max(found[2], 0.0)
    elif rows:
        fitted.decode_factor = sum(told / row[0] for row, told in rows) / len(rows)


def _quiet_loops(measured: Measured) -> list[tuple[list[float], float]]:
    """Closed loops that no front end holds up tell of the steps themselves."""
    return [
        ([c.decode_s(p.streams, p.context), 1.0, float(p.streams)], p.itl_s)
        for c, p in measured.loops
        if p.streams <= QUIET_STREAMS
    ]  # fmt: skip


def _fit_prefill(measured: Measured, fitted: Calibration) -> None:
    rows = [
        ([c.prefill_s(p.new, p.pairs(), p.batch, p.context), float(p.batch), 1.0], p.seconds)
        for c, p in measured.mixed
    ]  # fmt: skip
    if len(rows) >= 3:
        # Beside one number of streams only, what they cost and what is constant cannot be told apart.
        if len({row[1] for row, _ in rows}) == 1:
            rows = [(row[:2], told) for row, told in rows]
        found = least_squares(rows)
        fitted.prefill_factor, fitted.prefill_stream_s = found[0], max(found[1], 0.0)
        fitted.prefill_constant_s = max(found[2], 0.0) if len(found) > 2 else 0.0
        return
    bulk = [share for cost, point in measured.loops for share in _bulk_share(cost, point)]
    if bulk:
        fitted.prefill_factor = middle(bulk)
    elif len(measured.first_tokens) >= 2:
        # First tokens over HTTP alone: their slope is the engine's, and what is constant is laid to the ingestion.
        pairs = [([c.prefill_s(n, n * n / 2, 0, 0.0), 1.0], told) for c, n, told in measured.first_tokens]
        fitted.prefill_factor = least_squares(pairs)[0]


def _bulk_share(cost: StepCost, point: LoopPoint) -> list[float]:
    """Measured to tabled time of an engine that prefills in bulk before it decodes; empty for any other."""
    tokens, steps = point.streams * point.prompt, point.streams * point.prompt / cost.step_tokens
    if cost.engine != "sglang" or steps < BULK_STEPS:
        return []
    pairs = cost.step_tokens * point.prompt / 2
    return [point.prefill_s / (tokens / cost.step_tokens * cost.prefill_s(cost.step_tokens, pairs, 0, 0.0))]


def _fit_ingest(measured: Measured, fitted: Calibration) -> None:
    rest: list[tuple[int, float]] = []
    for cost, tokens, told in measured.first_tokens:
        step_s = fitted.prefill_factor * cost.prefill_s(tokens, tokens * tokens / 2, 0, 0.0)
        rest.append((tokens, told - step_s - fitted.prefill_constant_s))
    if rest:
        fitted.ingest_s = max(0.0, middle([seconds for _, seconds in rest]))


def _fit_front(measured: Measured, fitted: Calibration) -> None:
    bound: list[float] = []
    for cost, point in measured.loops:
        step_s = fitted.decode_factor * cost.decode_s(point.streams, point.context)
        step_s += fitted.decode_constant_s + fitted.decode_stream_s * point.streams
        if point.itl_s > FRONT_BOUND * step_s:
            bound.append(point.itl_s / point.streams)
    if bound:
        fitted.front_chunk_s = min(bound)


def middle(values: list[float]) -> float:
    """The median; of an even number the mean of the two in the middle. Raises `IndexError` for an empty list."""
    ranked = sorted(values)
    half = len(ranked) // 2
    return ranked[half] if len(ranked) % 2 else (ranked[half - 1] + ranked[half]) / 2


def least_squares(rows: list[tuple[list[float], float]]) -> list[float]:
    """The coefficients that fit `row · x ≈ told` best in relative error. Raises `ZeroDivisionError` when the rows do
    not determine them."""
    size = len(rows[0][0])
    matrix = [[0.0] * (size + 1) for _ in range(size)]
    for row, told in rows:
        weight = 1.0 / (told * told)
        for i in range(size):
            for j in range(size):
                matrix[i][j] += weight * row[i] * row[j]
            matrix[i][size] += weight * row[i] * told
    return _solved(matrix, size)


def _solved(matrix: list[list[float]], size: int) -> list[float]:
    """Gauss–Jordan with pivots."""
    for column in range(size):
        pivot = column
        for candidate in range(column + 1, size):
            if abs(matrix[candidate][column]) > abs(matrix[pivot][column]):
                pivot = candidate
        matrix[column], matrix[pivot] = matrix[pivot], matrix[column]
        lead = matrix[column][column]
        for other in range(size):
            if other != column:
                share = matrix[other][column] / lead
                for j in range(column, size + 1):
                    matrix[other][j] -= share * matrix[column][j]
    return [matrix[i][size] / matrix[i][i] for i in range(size)]
