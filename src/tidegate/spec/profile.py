"""The engine-neutral profile: what an instance is and how its scheduler is set (design.md §6)."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from tidegate.spec.quantity import PositiveCount, PositiveFraction, Word


class EngineProfile(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One engine configuration. Defaults are what vLLM 0.33 does unasked on an 8×H100 node.

    `shape` and `hardware` name a step table (`llama-3.1-70b`, `h100_sxm`); they matter to the twin and to
    emulated instances, not to the gateway.
    """

    kind: Literal["vllm", "sglang", "llamacpp"] = "vllm"
    """The engine: decides metric names and, in the twin, the scheduler."""
    shape: Word = "llama-3.1-70b"
    """The model's architecture, by the name of its step table."""
    hardware: Word = "h100_sxm"
    """The GPU, by the name of its step table."""
    gpus: PositiveCount = 8
    """Tensor-parallel GPUs of one instance."""
    weights: Literal["bf16", "fp8", "mxfp4"] = "fp8"
    """Number format of the weights."""
    kv_cache: Literal["bf16", "fp8"] = "fp8"
    """Number format of the KV cache."""
    memory_fraction: PositiveFraction = 0.92
    """Share of GPU memory the engine takes (vLLM gpu_memory_utilization, SGLang mem_fraction_static)."""
    step_tokens: PositiveCount = 8192
    """Token budget of one scheduler step (vLLM max_num_batched_tokens, SGLang chunked_prefill_size)."""
    max_sequences: PositiveCount = 1024
    """Requests one instance runs at once (vLLM max_num_seqs, SGLang max_running_requests)."""
    context_tokens: PositiveCount = 16384
    """Longest prompt plus answer an instance takes (vLLM max_model_len, SGLang context_length)."""
    block_tokens: PositiveCount = 16
    """Tokens in one KV block (vLLM block_size, SGLang page_size)."""
    prefix_cache: bool = True
    """Whether KV blocks of equal prompt beginnings are reused."""
