"""The engine-neutral profile: what an instance is and how its scheduler is set (design.md §6)."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from tidegate.spec.quantity import Fraction, PositiveCount


class EngineProfile(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One engine configuration. Defaults are what vLLM 0.33 does unasked on an 8×H100 node.

    `shape` and `hardware` name a step table (`llama-3.1-70b`, `h100_sxm`); they matter to the twin and to
    emulated instances, not to the gateway.
    """

    kind: Literal["vllm", "sglang", "llamacpp"] = "vllm"
    shape: str = "llama-3.1-70b"
    hardware: str = "h100_sxm"
    gpus: PositiveCount = 8
    """Tensor-parallel GPUs of one instance."""
    weights: Literal["bf16", "fp8", "mxfp4"] = "fp8"
    kv_cache: Literal["bf16", "fp8"] = "fp8"
    memory_fraction: Fraction = 0.92
    step_tokens: PositiveCount = 8192
    """Token budget of one scheduler step (vLLM max_num_batched_tokens, SGLang chunked_prefill_size)."""
    max_sequences: PositiveCount = 1024
    context_tokens: PositiveCount = 16384
    block_tokens: PositiveCount = 16
    prefix_cache: bool = True
