"""Engine metrics: real pages, renamed metrics, unknown is None."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.wire.prometheus import EngineFields, engine_sample, escape_label, parse, wanted_names


def sample_of(text: str, kind: str) -> EngineFields:
    return engine_sample(parse(text, wanted_names(kind)), kind)


def as_tuple(fields: EngineFields) -> tuple[float | None, ...]:
    return (
        fields.running, fields.waiting, fields.kv_used_fraction,
        fields.capacity_blocks, fields.block_tokens, fields.preemptions,
    )  # fmt: skip


def test_a_loaded_vllm(shared_dir: Path) -> None:
    text = (shared_dir / "reference/engines/vllm/metrics.load16.eager.txt").read_text()
    assert as_tuple(sample_of(text, "vllm")) == (16, 0, 0.003907203907203893, 4096, 128, 0)
    assert parse(text).bad_lines == 0
    assert parse(text).sum("vllm:generation_tokens_total") == 50565


def test_a_vllm_out_of_kv_blocks_shows_its_preemptions(shared_dir: Path) -> None:
    text = (shared_dir / "reference/engines/vllm/metrics.kv_exhausted.txt").read_text()
    fields = sample_of(text, "vllm")
    assert fields.preemptions
    assert fields.preemptions > 0


def test_a_vllm_0_24_on_a_gpu(shared_dir: Path) -> None:
    fields = sample_of((shared_dir / "measured/h200/metrics-load-default.txt").read_text(), "vllm")
    assert None not in as_tuple(fields)
    assert fields.block_tokens == 16


def test_a_loaded_sglang(shared_dir: Path) -> None:
    text = (shared_dir / "reference/engines/sglang/run-0.5.17/metrics.load.txt").read_text()
    fields = sample_of(text, "sglang")
    assert as_tuple(fields)[:5] == (194, 161, 0.4, 879841, 1)


def test_a_loaded_llamacpp_has_no_blocks(shared_dir: Path) -> None:
    text = (shared_dir / "reference/engines/llamacpp/metrics.load.txt").read_text()
    assert as_tuple(sample_of(text, "llamacpp")) == (16, 16, None, None, None, None)


def test_old_vllm_names_still_resolve() -> None:
    text = 'vllm:gpu_cache_usage_perc{model_name="m"} 0.5\nvllm:num_preemptions{model_name="m"} 3\n'
    fields = sample_of(text, "vllm")
    assert (fields.kv_used_fraction, fields.preemptions) == (0.5, 3)


def test_counts_of_data_parallel_engines_add_up_and_fractions_average() -> None:
    text = "\n".join(
        f'vllm:num_requests_running{{engine="{rank}",model_name="m"}} {running}\n'
        f'vllm:kv_cache_usage_perc{{engine="{rank}",model_name="m"}} {fraction}\n'
        f'vllm:cache_config_info{{block_size="16",engine="{rank}",num_gpu_blocks="1000"}} 1'
        for rank, running, fraction in ((0, 3, 0.2), (1, 5, 0.6))
    )
    fields = sample_of(text, "vllm")
    assert (fields.running, fields.capacity_blocks, fields.block_tokens) == (8, 2000, 16)
    assert fields.kv_used_fraction == pytest.approx(0.4)


def test_tensor_parallel_ranks_and_priority_classes_of_sglang_count_once() -> None:
    text = "".join(
        f'sglang:num_running_reqs{{tp_rank="{rank}",dp_rank="{dp}",priority="{cls}"}} {value}\n'
        for rank in (0, 1)
        for dp in (0, 1)
        for cls, value in (("", 7), ("0", 4), ("1", 3))
    )
    assert sample_of(text, "sglang").running == 14


@pytest.mark.parametrize("kind", ["vllm", "sglang", "llamacpp"])
def test_what_is_absent_or_nan_is_unknown(kind: str) -> None:
    assert as_tuple(sample_of("", kind)) == (None,) * 6
    nan = "\n".join(f'{name}{{engine="0"}} NaN' for name in wanted_names(kind))
    assert as_tuple(sample_of(nan, kind)) == (None,) * 6


def test_an_unset_block_count_is_unknown() -> None:
    assert sample_of('vllm:cache_config_info{num_gpu_blocks="None",block_size="16"} 1', "vllm").capacity_blocks is None


@given(
    st.dictionaries(
        st.from_regex(r"[a-z_]{1,8}", fullmatch=True),
        st.text(max_size=10).map(lambda t: t.replace("\r", "")),
        max_size=4,
    ),
    st.floats(allow_nan=False),
)
def test_labels_and_values_come_back(labels: dict[str, str], value: float) -> None:
    inner = ",".join(f'{name}="{escape_label(text)}"' for name, text in labels.items())
    page = parse(f"a:metric{{{inner}}} {value} 1712345678\n")
    (sample,) = page.get("a:metric")
    assert (sample.labels, sample.value, page.bad_lines) == (labels, value, 0)


@given(st.text(alphabet='ab:{}="\\, \n1.#', max_size=60))
def test_lines_that_do_not_parse_are_counted_not_raised(text: str) -> None:
    page = parse(text)
    lines = [line for line in text.split("\n") if line and not line.startswith("#")]
    assert sum(len(samples) for samples in page.samples.values()) + page.bad_lines == len(lines)
