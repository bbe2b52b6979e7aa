"""Launch profiles: what an instance should be told, in no engine's words.

In: a name, or the `EngineProfile` of a tidegate.yaml. Out: `LaunchProfile`, whose unset fields mean "as the engine
does unasked". `tidegate.engines.launch` puts it into one engine version's words.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from tidegate.errors import BadInputError
from tidegate.spec import EngineProfile


class LaunchProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One engine configuration. None everywhere means the engine's own default."""

    name: str = ""
    kind: Literal["vllm", "sglang"] = "vllm"
    """The engine it was written for; the other one can be asked for at launch."""
    model: str = ""
    """Path or hub name."""
    served_name: str | None = None
    gpus: int | None = None
    """Tensor-parallel GPUs."""
    stages: int | None = None
    """Pipeline stages; each takes `gpus` GPUs."""
    dtype: str | None = None
    quantization: str | None = None
    kv_cache: str | None = None
    """Number format of the KV cache: `auto`, `fp8`, `bf16`."""
    memory_fraction: float | None = None
    """vLLM: share of the GPU for everything; SGLang: share for weights and KV cache only."""
    step_tokens: int | None = None
    """Token budget of a step (vLLM), prompt tokens of one prefill chunk (SGLang)."""
    max_sequences: int | None = None
    context_tokens: int | None = None
    block_tokens: int | None = None
    chunked_prefill: bool | None = None
    prefix_cache: bool | None = None
    schedule_policy: str | None = None
    attention_backend: str | None = None
    swap_gib: float | None = None
    """Host memory for swapped-out KV blocks, as old vLLM had it."""
    log_requests: bool | None = None
    metrics: bool | None = None
    """Whether /metrics is served; vLLM always does."""
    drain_s: int | None = None
    """How long the engine itself waits for streams after SIGTERM."""
    host: str | None = None
    port: int | None = None
    env: dict[str, str] = {}
    """Environment that no engine option replaces."""


_MODEL_70B: Final = "/models/Meta-Llama-3-70B-Instruct"

PROFILES: Final[dict[str, LaunchProfile]] = {
    "defaults": LaunchProfile(name="defaults"),
    "flood": LaunchProfile(
        name="flood",
        kind="vllm",
        model=_MODEL_70B,
        gpus=8,
        dtype="bfloat16",
        kv_cache="fp8",
        memory_fraction=0.92,
        step_tokens=8192,
        max_sequences=512,
        context_tokens=8192,
        chunked_prefill=True,
        block_tokens=16,
        attention_backend="FLASHINFER",
        swap_gib=32,
        log_requests=False,
        port=8000,
        env={
            "CUDA_DEVICE_MAX_CONNECTIONS": "1",
            "NCCL_NET_GDR_LEVEL": "5",
            "NCCL_BUFFSIZE": "8388608",
            "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        },
    ),
    "long-chat": LaunchProfile(
        name="long-chat",
        kind="sglang",
        model=_MODEL_70B,
        gpus=8,
        memory_fraction=0.90,
        step_tokens=1024,
        max_sequences=512,
        schedule_policy="lpm",
        prefix_cache=True,
        port=30000,
        env={"NCCL_NET_GDR_LEVEL": "5", "CUDA_MODULE_LOADING": "LAZY"},
    ),
}
"""Built-in profiles. `flood` and `long-chat` are a published production set, an input to be judged: measured beside
`defaults` on one H200 the first gains 6 % throughput, and neither keeps TTFT through a pulse without admission."""


def built_in(name: str) -> LaunchProfile:
    """The profile of that name. Raises BadInputError that lists the names."""
    if name not in PROFILES:
        raise BadInputError(f"there is no profile {name!r}", hint=f"profiles: {', '.join(PROFILES)}")
    return PROFILES[name]


def of_pool(engine: EngineProfile, model: str) -> LaunchProfile:
    """The launch profile of a pool in tidegate.yaml. Raises BadInputError for llama.cpp."""
    if engine.kind == "llamacpp":
        raise BadInputError("llama.cpp has no launch profile yet", hint="use kind: vllm or sglang")
    return LaunchProfile(
        kind=engine.kind,
        model=model,
        gpus=engine.gpus,
        quantization="fp8" if engine.weights == "fp8" else None,
        kv_cache="auto" if engine.kv_cache == "bf16" else engine.kv_cache,
        memory_fraction=engine.memory_fraction,
        step_tokens=engine.step_tokens,
        max_sequences=engine.max_sequences,
        context_tokens=engine.context_tokens,
        block_tokens=engine.block_tokens,
        prefix_cache=engine.prefix_cache,
        metrics=True,
    )
