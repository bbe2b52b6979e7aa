"""Step times against the tables' own worked example, the published law, and what must hold of any cost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import BadInputError
from tidegate.spec import EngineProfile
from tidegate.twin.calibration import Calibration
from tidegate.twin.cost import StepCost
from tidegate.twin.steptable import available, find

PROFILE = EngineProfile(step_tokens=16384)
COST = StepCost.for_profile(PROFILE)


def single(cost: StepCost, new: int, prefix: float, batch: int = 0, context: float = 0.0) -> float:
    return cost.prefill_s(new, new * (prefix + new / 2), batch, context)


def test_the_tables_worked_example() -> None:
    cost = StepCost.for_profile(EngineProfile(gpus=4, step_tokens=2048))
    assert single(cost, 1984, 4096, 64, 2048) == pytest.approx(0.1236, abs=5e-5)


def test_a_big_step_budget_stalls_decodes_and_a_small_one_does_not() -> None:
    stall, gentle = single(COST, 8192 - 128, 0, 128, 2000), single(COST, 1024 - 128, 0, 128, 2000)
    assert 0.25 < stall < 0.33
    assert 0.04 < gentle < 0.06


@given(st.integers(1, 4000), st.integers(0, 20000), st.integers(1, 1000), st.floats(16, 16000))
def test_more_work_never_takes_less_time(new: int, prefix: int, batch: int, context: float) -> None:
    base = single(COST, new, prefix, batch, context)
    assert single(COST, new + 64, prefix, batch, context) >= base - 1e-12
    assert single(COST, new, prefix + 512, batch, context) >= base - 1e-12
    assert single(COST, new, prefix, batch, context + 100) >= base - 1e-12
    assert COST.decode_s(batch + 1, context) >= COST.decode_s(batch, context) - 1e-12


@given(st.lists(st.tuples(st.integers(1, 500), st.integers(0, 8000)), min_size=1, max_size=8))
def test_several_chunks_cost_as_one_with_the_same_pairs(chunks: list[tuple[int, int]]) -> None:
    new = sum(n for n, _ in chunks)
    pairs = sum(n * (x + n / 2) for n, x in chunks)
    prefix = pairs / new - new / 2
    together = COST.prefill_s(new, pairs, 0, 0.0)
    if prefix >= 0:
        assert together == pytest.approx(single(COST, new, prefix))
    else:
        assert single(COST, 1, 0) <= together <= single(COST, new, 0)


def test_a_token_behind_a_long_prefix_costs_at_least_a_decode_of_it() -> None:
    _, config = find(PROFILE)
    table, _ = find(PROFILE)
    batch_one = table.attention[config.attention].decode_attention_ms[0]
    assert single(COST, 1, 131_071) >= batch_one[-1] / 1000


def test_calibration_is_laid_over_the_table() -> None:
    tuned = StepCost.for_profile(PROFILE, Calibration(1.07, -0.0002, 1.08, 0.003))
    assert tuned.decode_s(64, 1000) == pytest.approx(1.07 * COST.decode_s(64, 1000) - 0.0002)
    assert single(tuned, 512, 0, 64, 1000) == pytest.approx(1.08 * single(COST, 512, 0, 64, 1000) + 0.003)


def test_kv_capacity_is_the_engines_within_two_percent() -> None:
    """vLLM 0.24 on one H200 with Llama-3-8B bf16 told 919,824 tokens (shared/measured/h200)."""
    profile = EngineProfile(shape="llama-3.1-8b", hardware="h200_sxm", gpus=1, weights="bf16", kv_cache="bf16")
    assert StepCost.for_profile(profile).kv_capacity_tokens == pytest.approx(919_824, rel=0.02)


def test_memory_fraction_and_step_budget_move_the_cache() -> None:
    def tokens(fraction: float, step: int) -> int:
        return StepCost.for_profile(EngineProfile(memory_fraction=fraction, step_tokens=step)).kv_capacity_tokens

    assert tokens(0.94, 8192) > tokens(0.92, 8192)
    assert tokens(0.92, 2048) > tokens(0.92, 8192)


@pytest.mark.parametrize(
    ("profile", "names"),
    [
        (EngineProfile(shape="llama-4"), "llama-3.1-70b h100_sxm vllm"),
        (EngineProfile(hardware="tpu"), "llama-3.1-8b h200_sxm sglang"),
        (EngineProfile(gpus=3), "tp8_fp8_kvfp8"),
        (EngineProfile(hardware="a100_sxm"), "tp8_bf16_kvbf16"),
    ],
)
def test_what_has_no_table_is_told_what_has(profile: EngineProfile, names: str) -> None:
    with pytest.raises(BadInputError) as caught:
        StepCost.for_profile(profile)
    assert names in caught.value.hint


def test_memory_too_small_for_one_context_is_refused() -> None:
    with pytest.raises(BadInputError, match="less than one context of 16384"):
        StepCost.for_profile(EngineProfile(gpus=1, memory_fraction=0.9))


def test_every_packaged_table_reads() -> None:
    for shape, hardware, kind in available():
        table, _ = find(EngineProfile(shape=shape, hardware=hardware, kind=kind, weights="bf16", kv_cache="bf16"))  # type: ignore[arg-type]
        assert (table.model, table.system, table.engine) == (shape, hardware, kind)
