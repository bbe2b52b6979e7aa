"""Memory arithmetic against published parameter counts and instances that were measured."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.engines.fit import GPUS, find_gpu, fit, read_shape
from tidegate.engines.fit.memory import GIB, divides, possible_sizes
from tidegate.engines.lint import LintRequest, lint_text
from tidegate.engines.profile import LaunchProfile
from tidegate.errors import BadInputError

KV_TOLERANCE = 0.01
"""KV capacity against measured instances: the free terms (activations, runtime) are estimates."""

LLAMA_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256,
    "max_position_embeddings": 131072, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
LLAMA_70B = {
    **LLAMA_8B, "hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64, "num_hidden_layers": 80,
}  # fmt: skip
MISTRAL_7B = {
    **LLAMA_8B, "architectures": ["MistralForCausalLM"], "vocab_size": 32000, "sliding_window": 4096,
    "max_position_embeddings": 32768,
}  # fmt: skip
MIXTRAL = {
    **MISTRAL_7B, "architectures": ["MixtralForCausalLM"], "num_local_experts": 8, "num_experts_per_tok": 2,
    "sliding_window": None,
}  # fmt: skip
QWEN2_7B = {
    "architectures": ["Qwen2ForCausalLM"], "hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28,
    "num_hidden_layers": 28, "num_key_value_heads": 4, "vocab_size": 152064, "max_position_embeddings": 32768,
    "use_sliding_window": False, "sliding_window": 131072, "torch_dtype": "bfloat16",
}  # fmt: skip
QWEN3_32B = {
    "architectures": ["Qwen3ForCausalLM"], "hidden_size": 5120, "intermediate_size": 25600, "num_attention_heads": 64,
    "num_hidden_layers": 64, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
    "max_position_embeddings": 40960,
}  # fmt: skip
QWEN3_30B_A3B = {
    "architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 2048, "intermediate_size": 6144,
    "moe_intermediate_size": 768, "num_attention_heads": 32, "num_hidden_layers": 48, "num_key_value_heads": 4,
    "head_dim": 128, "vocab_size": 151936, "num_experts": 128, "num_experts_per_tok": 8,
    "max_position_embeddings": 40960,
}  # fmt: skip
DEEPSEEK_V3 = {
    "architectures": ["DeepseekV3ForCausalLM"], "hidden_size": 7168, "intermediate_size": 18432,
    "moe_intermediate_size": 2048, "num_attention_heads": 128, "num_hidden_layers": 61, "num_key_value_heads": 128,
    "vocab_size": 129280, "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8,
    "first_k_dense_replace": 3, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "max_position_embeddings": 163840,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}  # fmt: skip
GPT_OSS_120B = {
    "architectures": ["GptOssForCausalLM"], "hidden_size": 2880, "intermediate_size": 2880, "num_attention_heads": 64,
    "num_hidden_layers": 36, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 201088, "num_local_experts": 128,
    "num_experts_per_tok": 4, "sliding_window": 128, "max_position_embeddings": 131072, "attention_bias": True,
    "layer_types": ["sliding_attention", "full_attention"] * 18, "quantization_config": {"quant_method": "mxfp4"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "published"),
    [
        (LLAMA_8B, 8.03e9), (LLAMA_70B, 70.55e9), (MISTRAL_7B, 7.24e9), (MIXTRAL, 46.70e9), (QWEN2_7B, 7.62e9),
        (QWEN3_32B, 32.76e9), (QWEN3_30B_A3B, 30.53e9), (DEEPSEEK_V3, 671.03e9), (GPT_OSS_120B, 116.8e9),
    ],
)  # fmt: skip
def test_parameters_are_the_published_ones(config: dict[str, Any], published: float) -> None:
    assert read_shape(config).parameters == pytest.approx(published, rel=0.001)


def measured_kv_tokens(page: Path) -> int:
    match = re.search(r'kv_cache_size_tokens="(\d+)"', page.read_text("utf-8"))
    assert match is not None
    return int(match.group(1))


@pytest.mark.parametrize(
    ("config", "page", "settings"),
    [
        (LLAMA_8B, "metrics-idle-default.txt", {}),
        (LLAMA_8B, "metrics-idle-tuned.txt", {"kv_cache": "fp8", "max_sequences": 512}),
        (LLAMA_8B, "metrics-idle-b2048.txt", {"step_tokens": 2048}),
        (LLAMA_70B, "metrics-idle-70b.txt", {"quantization": "fp8"}),
    ],
)
def test_kv_tokens_are_those_vllm_had_on_one_h200(
    config: dict[str, Any], page: str, settings: dict[str, Any], shared_dir: Path
) -> None:
    measured = measured_kv_tokens(shared_dir / "measured" / "h200" / page)
    found = fit(read_shape(config), find_gpu("H200"), LaunchProfile(context_tokens=16384, **settings))
    assert found.kv_tokens == pytest.approx(measured, rel=KV_TOLERANCE)
    assert found.concurrency == pytest.approx(measured / 16384, rel=KV_TOLERANCE)


def test_kv_tokens_are_those_sglang_had_on_one_h200(shared_dir: Path) -> None:
    log = (shared_dir / "measured" / "h200_sglang" / "sglang-0.5.17-default.log").read_text("utf-8")
    match = re.search(r"max_total_num_tokens=(\d+).*available_gpu_mem=([\d.]+) GB", log)
    assert match is not None
    profile = LaunchProfile(kind="sglang", memory_fraction=0.88, block_tokens=1)
    found = fit(read_shape(LLAMA_8B), find_gpu("H200"), profile)
    assert found.kv_tokens == pytest.approx(int(match.group(1)), rel=0.002), "SGLang's share has no estimate in it"
    beside = (found.headroom_bytes + found.activation_bytes) / GIB
    assert beside == pytest.approx(float(match.group(2)), rel=0.05)


@pytest.mark.parametrize(("gpus", "heads"), [(1, 8), (2, 4), (8, 1), (16, 1)])
def test_kv_heads_are_divided_and_copied_when_there_are_more_gpus(gpus: int, heads: int) -> None:
    found = fit(read_shape(LLAMA_70B), find_gpu("B200"), LaunchProfile(gpus=gpus, kv_cache="fp8"))
    assert found.kv_bytes_per_token == 80 * 2 * heads * 128


def test_pipeline_stages_share_weights_and_layers() -> None:
    shape = read_shape(LLAMA_70B)
    one = fit(shape, find_gpu("H100"), LaunchProfile(gpus=4))
    two = fit(shape, find_gpu("H100"), LaunchProfile(gpus=4, stages=2))
    assert two.gpus == 8
    assert two.weights_bytes * 2 == pytest.approx(one.weights_bytes, abs=2)
    assert two.kv_bytes_per_token * 2 == one.kv_bytes_per_token
    line = "vllm serve m -tp 2 -pp 4"
    report = lint_text(line, "x", LintRequest(shape=shape, gpu=find_gpu("H100")))
    assert "weights-do-not-fit" not in {one.rule for one in report.findings}


@pytest.mark.parametrize("extra", ["--enable-expert-parallel", "--data-parallel-size 8", "--cpu-offload-gb 80"])
def test_memory_shared_in_unknown_ways_is_not_judged(extra: str) -> None:
    request = LintRequest(shape=read_shape(DEEPSEEK_V3), gpu=find_gpu("H100"))
    rules = [
        {one.rule for one in lint_text(f"vllm serve m -tp 4 {more}", "x", request).findings} for more in ("", extra)
    ]
    assert "weights-do-not-fit" in rules[0]
    assert "weights-do-not-fit" not in rules[1]


@pytest.mark.parametrize(("text", "found"), [("40K", False), ("40960", False), ("41K", True), ("40961", True)])
def test_vllms_own_suffixes_are_read_as_vllm_reads_them(text: str, found: bool) -> None:
    request = LintRequest(shape=read_shape(QWEN3_32B))
    report = lint_text(f"vllm serve m --max-model-len {text}", "x", request)
    assert ("context-beyond-rope" in {one.rule for one in report.findings}) == found


def test_latent_attention_and_sliding_windows_keep_little() -> None:
    deepseek = fit(read_shape(DEEPSEEK_V3), find_gpu("H200"), LaunchProfile(gpus=8, context_tokens=8192))
    assert deepseek.kv_bytes_per_token == 61 * (512 + 64) * 2
    assert deepseek.fits
    oss = fit(read_shape(GPT_OSS_120B), find_gpu("H100"), LaunchProfile(context_tokens=8192))
    assert oss.kv_bytes_per_token == 18 * 2 * 8 * 64 * 2
    assert oss.window_bytes_per_sequence == 18 * 2 * 8 * 64 * 2 * 128
    assert 60 * GIB < oss.weights_bytes < 62 * GIB
    assert oss.fits


@pytest.mark.parametrize(
    ("config", "gpu", "settings", "says"),
    [
        (LLAMA_70B, "H100", {"gpus": 1}, "exceed the engine's share by"),
        (LLAMA_70B, "H100", {"gpus": 3}, "cannot be split over 3 GPUs; use 1, 2, 4, 8, 16"),
        (LLAMA_8B, "A10G", {"kv_cache": "fp8"}, "has no FP8 e4m3; use a KV format of fp8_e5m2 or auto"),
        (LLAMA_8B, "V100", {"kv_cache": "fp8"}, "use a KV format of auto"),
        (QWEN3_32B, "H200", {"context_tokens": 131072}, "exceeds the model's 40960 positions"),
        (LLAMA_8B, "L4", {"context_tokens": 131072}, "of one request of full context"),
    ],
)  # fmt: skip
def test_what_cannot_run_is_said(config: dict[str, Any], gpu: str, settings: dict[str, Any], says: str) -> None:
    found = fit(read_shape(config), find_gpu(gpu), LaunchProfile(**settings))
    assert not found.fits
    assert says in " ".join(found.problems)


@pytest.mark.parametrize(
    ("fraction", "rules"),
    [
        (0.92, set()),
        (0.95, {("headroom-small", "WARNING")}),
        (0.97, {("headroom-small", "ERROR"), ("memory-fraction-high", "WARNING")}),
        (0.99, {("headroom-small", "ERROR"), ("memory-fraction-high", "WARNING")}),
    ],
)
def test_the_fractions_that_killed_servers_are_found(fraction: float, rules: set[tuple[str, str]]) -> None:
    """vllm-project/vllm#13100 (0.99 on A100 80 GB) and #13267 (0.97, TP 8)."""
    line = f"vllm serve m --gpu-memory-utilization {fraction} -tp 8 --max-model-len 65536"
    report = lint_text(line, "x", LintRequest(shape=read_shape(LLAMA_70B), gpu=find_gpu("A100")))
    wanted = ("headroom-small", "memory-fraction-high")
    assert {(one.rule, one.severity.name) for one in report.findings if one.rule in wanted} == rules


@pytest.mark.parametrize(
    ("line", "config", "gpu", "rule", "word"),
    [
        ("vllm serve m -tp 3", LLAMA_70B, "H100", "parallelism-impossible", "possible: 1, 2, 4, 8, 16"),
        ("vllm serve m --kv-cache-dtype fp8", LLAMA_8B, "A10G", "kv-format-unsupported", "fp8_e5m2"),
        ("vllm serve m --kv-cache-dtype fp8", LLAMA_8B, "V100", "kv-format-unsupported", "use auto"),
        ("vllm serve m --dtype bfloat16", LLAMA_8B, "T4", "dtype-unsupported", "half"),
        ("vllm serve m --max-model-len 64k", QWEN3_32B, "H200", "context-beyond-rope", "40960"),
        ("vllm serve m", LLAMA_70B, "H100", "weights-do-not-fit", "more GPUs"),
        ("vllm serve m --max-num-seqs 1024", LLAMA_8B, "L4", "kv-shared-thin", "keep 1024 tokens each"),
        ("sglang serve --model-path m --tp-size 5", LLAMA_70B, "H100", "parallelism-impossible", "possible"),
    ],
)  # fmt: skip
def test_physical_findings_of_lint(line: str, config: dict[str, Any], gpu: str, rule: str, word: str) -> None:
    report = lint_text(line, "x", LintRequest(shape=read_shape(config), gpu=find_gpu(gpu)))
    found = [one for one in report.findings if one.rule == rule]
    assert len(found) == 1, [one.text for one in report.findings]
    assert word in found[0].advice


def test_the_step_budget_that_breaks_the_itl_is_found_and_the_one_that_keeps_it() -> None:
    """Measured, 8B on one H200: a full step of 8192 tokens holds streams for 200 ms, one of 2048 for 66 ms."""
    request = LintRequest(shape=read_shape(LLAMA_8B), gpu=find_gpu("H200"), itl_s=0.08)
    rules = {
        budget: "step-exceeds-itl"
        in {one.rule for one in lint_text(f"vllm serve m --max-num-batched-tokens {budget}", "x", request).findings}
        for budget in (8192, 2048)
    }
    assert rules == {8192: True, 2048: False}


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ([], "not a model configuration"),
        ({}, "no num_attention_heads"),
        ({**LLAMA_8B, "num_hidden_layers": "32"}, "num_hidden_layers is '32', not a count"),
        ({**LLAMA_8B, "hidden_size": -1}, "hidden_size is -1"),
        ({**LLAMA_8B, "vocab_size": None}, "no vocab_size"),
        ({**LLAMA_8B, "num_attention_heads": 10**12}, "not a count"),
        ({**LLAMA_8B, "hidden_size": True}, "not a count"),
    ],
)
def test_a_broken_configuration_is_one_sentence(config: Any, says: str) -> None:
    with pytest.raises(BadInputError, match=says):
        read_shape(config, "x/config.json")


def test_a_gpu_nobody_knows_is_refused_with_those_known() -> None:
    with pytest.raises(BadInputError) as caught:
        find_gpu("H10")
    assert "h100_sxm" in caught.value.hint


@given(
    gpu=st.sampled_from(sorted(GPUS)),
    gpus=st.sampled_from([1, 2, 4, 8]),
    fraction=st.floats(0.1, 1.0),
    kind=st.sampled_from(["vllm", "sglang"]),
    context=st.integers(1, 131072),
)
def test_parts_never_exceed_the_gpu_and_more_memory_never_holds_less(
    gpu: str, gpus: int, fraction: float, kind: Any, context: int
) -> None:
    shape = read_shape(LLAMA_8B)
    profile = LaunchProfile(kind=kind, gpus=gpus, memory_fraction=fraction, context_tokens=context)
    found = fit(shape, GPUS[gpu], profile)
    less = fit(shape, GPUS[gpu], LaunchProfile(kind=kind, gpus=gpus, memory_fraction=fraction / 2))
    assert less.kv_tokens <= found.kv_tokens
    assert found.weights_bytes + max(0, found.kv_bytes) <= found.total_bytes or found.kv_bytes <= 0
    assert (found.kv_tokens == 0) == (found.kv_bytes <= 0) or found.kv_tokens < 16


@given(st.integers(1, 128), st.integers(1, 16))
def test_possible_sizes_divide(heads: int, groups: int) -> None:
    config = {**LLAMA_8B, "num_attention_heads": heads * groups, "num_key_value_heads": heads}
    shape = read_shape(config)
    sizes = possible_sizes(shape, 32)
    assert 1 in sizes
    assert all(shape.heads % size == 0 and divides(shape, size) for size in sizes)


def run(*words: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "tidegate", "fit", *words]
    return subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)


def test_the_command(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_70B))
    done = run(str(tmp_path), "--gpu", "H100", "--profile", "flood")
    assert done.returncode == 0, done.stderr
    assert "70.55 B parameters" in done.stdout
    assert re.search(r"^\[W+A+K+G+·+\]$", done.stdout, re.MULTILINE)
    done = run(str(tmp_path), "--gpu", "H100", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["kv_tokens"] == 0
    assert run(str(tmp_path), "--gpu", "H100", "--memory-fraction", "much").returncode == 3
    assert run(str(tmp_path / "none"), "--gpu", "H100").returncode == 3
    assert run(str(tmp_path), "--gpu", "abacus").returncode == 3
