"""Where a GPU's memory goes, and how many tokens are left for the KV cache.

The two engines divide differently. vLLM's fraction covers everything it allocates while it profiles: weights,
activations, KV; CUDA graphs come on top. SGLang's fraction covers weights and KV; activations and graphs must fit the
rest. Weights and KV are exact. Activations, runtime and graphs are estimates fitted to the runs in `measured`:
vLLM 0.24 on one H200 took 1.33 GiB beside weights and KV for Llama-3 8B, 1.24 with a step budget of 2048, 2.5 for 70B,
and 0.98 GiB of graphs; SGLang 0.5.17 took 1.67 GiB of graphs.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from tidegate.engines.fit.gpu import Gpu
from tidegate.engines.fit.shape import ModelShape
from tidegate.engines.profile import LaunchProfile
from tidegate.errors import BadInputError

GIB: Final = 2**30
_BYTES: Final = {"bf16": 2.0, "fp32": 4.0, "fp8": 1.0, "int8": 1.0, "int4": 0.53, "mxfp4": 0.53125}
"""Bytes of one parameter of a quantized matrix, scales included."""
_RUNTIME_BYTES: Final = int(0.5 * GIB)
"""CUDA context, NCCL, allocator slack."""
_SGLANG_CONTEXT_BYTES: Final = int(0.67 * GIB)
"""Taken before SGLang first looks: 139.80 GiB became 139.13."""
_GRAPH_GIB: Final = {"vllm": (0.6, 0.012), "sglang": (1.0, 0.021)}
"""CUDA graphs: a base and a share for each layer; 32 layers were measured, more are extrapolated."""
LEAST_HEADROOM_BYTES: Final = 2 * GIB
HEADROOM_SHARE: Final = 0.05
_DEFAULT_FRACTION: Final = {"vllm": 0.92, "sglang": 0.88}


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes are of one GPU. `kv_tokens` is the whole instance's capacity, 0 when nothing is left for it."""

    gpus: int
    total_bytes: int
    budget_bytes: int
    """What the memory fraction gives the engine."""
    weights_bytes: int
    activation_bytes: int
    graph_bytes: int
    kv_bytes: int
    """Left for the KV cache; negative when weights and activations exceed the budget."""
    kv_bytes_per_token: float
    """A full-length layer's share; sliding layers are in `window_bytes_per_sequence`."""
    window_bytes_per_sequence: int
    kv_tokens: int
    context_tokens: int
    concurrency: float
    """Requests of full context the KV cache holds at once."""
    headroom_bytes: int
    """What is free on the GPU when everything is allocated."""
    headroom_wanted_bytes: int
    problems: tuple[str, ...]
    """Why it cannot run as asked."""

    @property
    def fits(self) -> bool:
        return not self.problems


def fit(shape: ModelShape, gpu: Gpu, profile: LaunchProfile) -> Fit:
    """How `shape` fits `profile.gpus` × `profile.stages` (default 1) of `gpu`. Raises BadInputError for nonsense."""
    count, stages = profile.gpus or 1, profile.stages or 1
    fraction = profile.memory_fraction if profile.memory_fraction is not None else _DEFAULT_FRACTION[profile.kind]
    if count < 1 or stages < 1 or not 0 < fraction <= 1:
        raise BadInputError(
            f"{count} GPUs at a memory fraction of {fraction} is impossible", hint="for example 8 and 0.9"
        )
    total = int(gpu.memory_gib * GIB)
    weights = weights_bytes(shape, profile, count * stages)
    activation = activation_bytes(shape, profile, count, gpu)
    sglang = profile.kind == "sglang"
    seen = total - _SGLANG_CONTEXT_BYTES if sglang else total
    budget = int(seen * fraction)
    kv = budget - weights - (0 if sglang else activation + _RUNTIME_BYTES)
    base, layer = _GRAPH_GIB[profile.kind]
    graphs = int((base + layer * shape.layers / stages) * GIB)
    per_token, window = kv_bytes(shape, profile, count)
    context = profile.context_tokens or shape.context_limit or 4096
    tokens, concurrency = _capacity(kv, per_token, window, context, profile.block_tokens or 16)
    return Fit(
        gpus=count * stages,
        total_bytes=total,
        budget_bytes=budget,
        weights_bytes=weights,
        activation_bytes=activation,
        graph_bytes=graphs,
        kv_bytes=kv,
        kv_bytes_per_token=per_token,
        window_bytes_per_sequence=window,
        kv_tokens=tokens,
        context_tokens=context,
        concurrency=concurrency,
        headroom_bytes=seen - budget - graphs - (activation if sglang else 0),
        headroom_wanted_bytes=max(LEAST_HEADROOM_BYTES, int(total * HEADROOM_SHARE)),
        problems=tuple(_problems(shape, gpu, profile, count, kv, concurrency)),
    )


def weights_bytes(shape: ModelShape, profile: LaunchProfile, gpus: int) -> int:
    """Weights on one GPU: matrices are split, norms and routers too small to matter."""
    form = shape.weights
    if profile.quantization and profile.quantization.startswith("fp8") and form == "bf16":
        form = "fp8"
    size = _BYTES[form]
    # gpt-oss keeps everything but its experts in 16 bits.
    dense = 2.0 if form == "mxfp4" else size
    matrices = (shape.attention_parameters + shape.dense_parameters) * dense + shape.expert_parameters * size
    return int((matrices + shape.embedding_parameters * max(2.0, size if form == "fp32" else 2.0)) / gpus)


def kv_bytes(shape: ModelShape, profile: LaunchProfile, gpus: int) -> tuple[float, int]:
    """KV bytes on one GPU: per token of the layers that keep all, and per sequence of the layers that keep a window."""
    stages = profile.stages or 1
    size = 1.0 if profile.kv_cache is not None and profile.kv_cache.startswith(("fp8", "mxfp8", "int8")) else 2.0
    if shape.mla is not None:
        return shape.layers * (shape.mla.kv_rank + shape.mla.rope_dim) * size / stages, 0
    heads = max(1, math.ceil(shape.kv_heads / gpus))
    layer = 2 * heads * shape.head_dim * size / stages
    full = shape.layers - shape.sliding_layers
    return full * layer, int(shape.sliding_layers * layer * shape.window_tokens)


def activation_bytes(shape: ModelShape, profile: LaunchProfile, gpus: int, gpu: Gpu) -> int:
    """The largest step's working memory: feed-forward rows and residuals of its tokens."""
    width = shape.experts.width * shape.experts.per_token if shape.experts else shape.width
    return int(step_tokens(profile, gpu) * (3 * width / gpus + 4 * shape.hidden) * 2)


def step_tokens(profile: LaunchProfile, gpu: Gpu) -> int:
    """The step budget, or what the engine takes unasked on this GPU."""
    if profile.step_tokens is not None and profile.step_tokens > 0:
        return profile.step_tokens
    if profile.kind == "vllm" and gpu.memory_gib >= 160:
        return 16384
    return 8192 if gpu.memory_gib >= 70 and not gpu.name.startswith("a100") else 2048


def _capacity(kv: int, per_token: float, window: int, context: int, block: int) -> tuple[int, float]:
    if kv <= 0:
        return 0, 0.0
    of_one = per_token * math.ceil(context / block) * block + min(window, window * context)
    concurrency = kv / of_one if of_one else 0.0
    if window:
        return int(concurrency * context), concurrency
    return int(kv / per_token) // block * block, concurrency


def _problems(
    shape: ModelShape, gpu: Gpu, profile: LaunchProfile, count: int, kv: int, concurrency: float
) -> list[str]:
    found: list[str] = []
    if not divides(shape, count):
        sizes = ", ".join(str(size) for size in possible_sizes(shape, 16))
        found.append(
            f"{shape.heads} heads and {shape.kv_heads} KV heads cannot be split over {count} GPUs; use {sizes}"
        )
    if kv <= 0:
        found.append(f"weights and working memory exceed the engine's share by {-kv / GIB:.1f} GiB on each GPU")
    elif concurrency < 1:
        found.append(f"the KV cache holds {concurrency:.2f} of one request of full context")
    if profile.kv_cache in ("fp8", "fp8_e4m3") and not gpu.fp8:
        instead = "fp8_e5m2 or auto" if gpu.bf16 else "auto"
        found.append(f"{gpu.name} (capability {gpu.capability / 10}) has no FP8 e4m3; use a KV format of {instead}")
    limit = shape.context_limit
    if limit and profile.context_tokens is not None and profile.context_tokens > limit:
        found.append(f"a context of {profile.context_tokens} exceeds the model's {limit} positions")
    return found


def divides(shape: ModelShape, gpus: int) -> bool:
    """Whether tensor parallelism over `gpus` is possible: heads divide, KV heads divide or are copied whole."""
    kv = shape.kv_heads
    return shape.heads % gpus == 0 and (shape.mla is not None or kv % gpus == 0 or gpus % kv == 0)


def possible_sizes(shape: ModelShape, most: int) -> list[int]:
    """Every tensor-parallel size up to `most` GPUs that divides the heads."""
    return [size for size in range(1, most + 1) if divides(shape, size)]
