"""How long an engine step takes, what KV fits, what FLOPs it did: the step law over the packaged tables.

    decode step  = decode_linear(batch)        + decode_attention(batch, mean context)
    prefill step = prefill_linear(new)         + prefill_attention(new, prefix)
    mixed step   = prefill_linear(new + batch) + prefill_attention(new, prefix) + decode_attention(batch, mean context)

Several chunks in a step are replaced by one chunk of N = Σ n_i tokens with the same number of query-key pairs,
Σ n_i (x_i + n_i/2); that is within 1 % (median) of the source, where summing attention chunk by chunk is 34 % off.
A few tokens behind a very long prefix never cost less than decoding one token at that context. Context counts the
token being made. All interpolation is linear in the raw values. Beyond the largest knot the last segment goes on,
except that a chunk beyond the largest attended chunk is scaled by its query-key pairs.

The tables are sums of kernels. `twin.calibration` holds what measured runs add; by default nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

from tidegate.errors import BadInputError
from tidegate.spec import EngineProfile
from tidegate.twin.calibration import Calibration as Calibration
from tidegate.twin.steptable import Memory, StepTable, find

UNBOUNDED: Final = 1e300
_CELLS: Final[dict[tuple[int, ...], list[int]]] = {}
"""`cells_of` by axis: 131,072 numbers each, made once."""


class DecodeRow:
    """Pure decode at one batch size: step time in seconds, piecewise linear in the mean context."""

    __slots__ = ("attention_s", "step_s")

    def __init__(self, attention_s: list[float], step_s: list[float]) -> None:
        self.attention_s = attention_s
        """Attention alone, uncalibrated, at each context knot; for mixed steps."""
        self.step_s = step_s
        """Whole pure decode step, calibrated, at each context knot."""


class StepCost:
    """The cost of one engine profile. Immutable but for its memo of decode rows; instances may share it."""

    __slots__ = (
        "_attended", "_attended_cell", "_attended_share", "_attention", "_batch_knots", "_context_cells", "_decode",
        "_decode_linear", "_linear", "_prefix_cells", "_prefix_knots", "_rows", "attention_flops", "calibration",
        "context_knots", "engine", "engine_version", "kv_capacity_tokens", "linear_flops", "logits_flops",
        "peak_flops_per_s", "step_tokens",
    )  # fmt: skip

    def __init__(self, table: StepTable, key: str, profile: EngineProfile, calibration: Calibration) -> None:
        """Use `for_profile`."""
        config, axes = table.configs[key], table.axes
        linear, attention = table.linear[config.linear], table.attention[config.attention]
        self.engine = table.engine
        self.engine_version = table.engine_version
        self.calibration = calibration
        self.step_tokens = profile.step_tokens
        most = profile.step_tokens + 1
        self._linear = expand(axes.tokens, _seconds(linear.prefill_linear_ms), most)
        self._decode_linear = expand(axes.decode_tokens, _seconds(linear.decode_linear_ms), profile.max_sequences + 1)
        self._attention = [_seconds(row) for row in attention.prefill_attention_ms]
        self._attended = axes.attention_tokens[-1]
        self._attended_cell, self._attended_share = _cells(axes.attention_tokens, min(most, self._attended + 1))
        self._prefix_knots = [float(knot) for knot in axes.prefix_tokens]
        self._prefix_cells = cells_of(axes.prefix_tokens)
        self._batch_knots = axes.batch
        self._decode = [_seconds(row) for row in attention.decode_attention_ms]
        self.context_knots = [float(knot) for knot in axes.context_tokens]
        self._context_cells = cells_of(axes.context_tokens)
        self._rows: dict[int, DecodeRow] = {}
        self.kv_capacity_tokens = kv_capacity_tokens(config.memory, profile)
        """Tokens of KV cache that fit at the profile's memory fraction and step budget; whole blocks only."""
        self.linear_flops = table.flops.linear_flops_per_token
        self.attention_flops = table.flops.attention_flops_per_token_per_context_token
        self.logits_flops = table.flops.logits_flops_per_sampled_token
        # A4W4 and weight-only formats compute in bf16 at most; only fp8 weights reach the fp8 peak.
        dtype = "fp8" if config.weights == "fp8" else "bf16"
        peak = table.gpu[f"{dtype}_flops_per_s"]
        assert peak is not None, f"{profile.hardware} has {dtype} configurations but no {dtype} peak"
        self.peak_flops_per_s = peak * config.tensor_parallel
        """Dense peak of the whole instance at its weights' dtype."""

    @staticmethod
    def for_profile(profile: EngineProfile, calibration: Calibration | None = None) -> StepCost:
        """The cost of `profile`. Raises `BadInputError` when no table has it or no KV cache fits its memory."""
        table, _ = find(profile)
        key = f"tp{profile.gpus}_{profile.weights}_kv{profile.kv_cache}"
        return StepCost(table, key, profile, calibration if calibration is not None else Calibration())

    def describe(self) -> str:
        """Which engine the step times were measured on: `vllm 0.24.0`."""
        return f"{self.engine} {self.engine_version}"

    def decode_row(self, batch: int) -> DecodeRow:
        """Pure decode of `batch` ≥ 1 sequences."""
        row = self._rows.get(batch)
        if row is None:
            row = self._make_row(batch)
            self._rows[batch] = row
        return row

    def decode_s(self, batch: int, mean_context: float) -> float:
        """Seconds of a pure decode step; `mean_context` counts the token being made."""
        return interpolate(self.context_knots, self.decode_row(batch).step_s, mean_context)

    def prefill_s(self, new: int, pairs: float, batch: int, mean_context: float) -> float:
        """Seconds of a step with `new` ≥ 1 prompt tokens that attend to `pairs` = Σ n (prefix + n/2) keys, beside
        `batch` ≥ 0 decodes at `mean_context`."""
        total = self._linear[new + batch] + self._prefill_attention_s(new, pairs)
        if batch > 0:
            row = self.decode_row(batch).attention_s
            total += along(self.context_knots, self._context_cells, row, mean_context)
        fitted = self.calibration
        return fitted.prefill_factor * total + fitted.prefill_constant_s + fitted.prefill_stream_s * batch

    def flops(self, tokens: int, pairs: float, sampled: int) -> float:
        """FLOPs of `tokens` processed, with `pairs` = Σ (new token × tokens it attends to), and `sampled` tokens."""
        return self.linear_flops * tokens + self.attention_flops * pairs + self.logits_flops * sampled

    def _prefill_attention_s(self, new: int, pairs: float) -> float:
        if new > self._attended:
            scale = pairs / (pairs * self._attended / new)
            return self._prefill_attention_s(self._attended, pairs / scale) * scale
        prefix = pairs / new - new / 2
        if prefix < 0.0:
            least = self._attention[0][0]
            whole = self._attention_at(new, 0.0)
            return least + (whole - least) * pairs / (new * new / 2)
        floor = along(self.context_knots, self._context_cells, self.decode_row(1).attention_s, prefix + new)
        return max(self._attention_at(new, prefix), floor)

    def _attention_at(self, new: int, prefix: float) -> float:
        cell, share = self._attended_cell[new], self._attended_share[new]
        low = along(self._prefix_knots, self._prefix_cells, self._attention[cell], prefix)
        if share == 0.0:
            return low
        return low + (along(self._prefix_knots, self._prefix_cells, self._attention[cell + 1], prefix) - low) * share

    def _make_row(self, batch: int) -> DecodeRow:
        knots = self._batch_knots
        cell = min(max(bisect_right(knots, batch) - 1, 0), len(knots) - 2)
        share = (batch - knots[cell]) / (knots[cell + 1] - knots[cell])
        low, high = self._decode[cell], self._decode[cell + 1]
        attention = [low[i] + (high[i] - low[i]) * share for i in range(len(low))]
        factor = self.calibration.decode_factor
        constant = self.calibration.decode_constant_s + self.calibration.decode_stream_s * batch
        linear = self._decode_linear[batch]
        return DecodeRow(attention, [factor * (linear + value) + constant for value in attention])


def kv_capacity_tokens(memory: Memory, profile: EngineProfile) -> int:
    """Tokens of KV that fit: what `memory_fraction` leaves after weights, runtime, communication and activations.

    Activations grow in proportion to the step budget, as in the source; the logits of `max_sequences` and memory
    fragmentation are not counted. vLLM 0.24 on one H200 told 1.5 % more (Llama-3-8B bf16, 8,192 tokens a step).
    Raises `BadInputError` when the cache cannot hold one sequence of `context_tokens`, as engines refuse to start.
    """
    known = {int(tokens): size for tokens, size in memory.activation_bytes_per_gpu_by_step_tokens.items()}
    largest = max(known)
    activation = known[largest] * profile.step_tokens / largest
    fixed = memory.weight_bytes_per_gpu + memory.runtime_overhead_bytes_per_gpu + memory.communication_bytes_per_gpu
    room = profile.memory_fraction * memory.gpu_capacity_bytes - fixed - activation
    tokens = max(0, int(room / memory.kv_bytes_per_token_per_gpu))
    tokens -= tokens % profile.block_tokens
    if tokens < profile.context_tokens:
        raise BadInputError(
            f"{profile.shape} on {profile.gpus}×{profile.hardware}: the KV cache holds {tokens} tokens at"
            f" memory_fraction {profile.memory_fraction:g}, less than one context of {profile.context_tokens}",
            hint="raise memory_fraction, use more GPUs, lower step_tokens, or lower context_tokens",
        )
    return tokens


def interpolate(knots: list[float], values: list[float], at: float) -> float:
    """Piecewise linear, clamped below the first knot, going on beyond the last."""
    if at <= knots[0]:
        return values[0]
    cell = min(bisect_right(knots, at) - 1, len(knots) - 2)
    low = values[cell]
    return low + (values[cell + 1] - low) * ((at - knots[cell]) / (knots[cell + 1] - knots[cell]))


def along(knots: list[float], cells: list[int], values: list[float], at: float) -> float:
    """`interpolate` for whole knots, whose cells `cells_of` has listed: the same value without a search."""
    if at <= knots[0]:
        return values[0]
    whole = int(at)
    cell = cells[whole] if whole < len(cells) else len(knots) - 2
    low = values[cell]
    return low + (values[cell + 1] - low) * ((at - knots[cell]) / (knots[cell + 1] - knots[cell]))


def cells_of(knots: list[int]) -> list[int]:
    """For each whole number below the last knot, the knot below it. Shared by all costs with the same axis."""
    key = tuple(knots)
    found = _CELLS.get(key)
    if found is None:
        found = _CELLS[key] = _cells(knots, knots[-1])[0]
    return found


def expand(knots: list[int], values: list[float], count: int) -> list[float]:
    """The piecewise linear function at 0, 1, … `count` − 1."""
    floats = [float(knot) for knot in knots]
    return [interpolate(floats, values, float(at)) for at in range(count)]


def _cells(knots: list[int], count: int) -> tuple[list[int], list[float]]:
    """For each whole value: the knot below it, and how far it is to the next."""
    cells: list[int] = []
    shares: list[float] = []
    cell = 0
    for at in range(count):
        while cell < len(knots) - 2 and knots[cell + 1] <= at:
            cell += 1
        cells.append(cell)
        shares.append(max(0.0, (at - knots[cell]) / (knots[cell + 1] - knots[cell])))
    return cells, shares


def _seconds(values_ms: list[float]) -> list[float]:
    return [value / 1000.0 for value in values_ms]
