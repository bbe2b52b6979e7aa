"""Rules that need to know the model and the GPU, or the traffic."""

from __future__ import annotations

from typing import Final

from tidegate.engines.fit import Fit, fit
from tidegate.engines.fit.memory import GIB, divides, possible_sizes, step_tokens
from tidegate.engines.launch import WORDS
from tidegate.engines.lint.context import Context
from tidegate.engines.lint.finding import Severity
from tidegate.engines.lint.uses import Use
from tidegate.engines.profile import LaunchProfile
from tidegate.errors import BadInputError
from tidegate.units import parse_count

_SAFE_FRACTION: Final = {"vllm": 0.95, "sglang": 0.92}
"""Above these, public reports of servers that died under long prompts begin (vllm-project/vllm#13100, #13267)."""
_USUAL_TOKENS: Final = 1024
"""Tokens a running sequence is taken to hold when nothing is known of the traffic."""
_EFFICIENCY: Final = 0.65
"""Share of the peak FLOPs a prefill reaches: 40,000 tokens/s of 8B on an H200."""
_OTHER_SHARES: Final = (
    "--enable-expert-parallel", "--ep-size", "--data-parallel-size", "--dp-size", "--cpu-offload-gb",
    "--kv-cache-memory-bytes", "--num-gpu-blocks-override", "--max-total-tokens", "--enable-dp-attention",
    "--attn-dp-size", "--decode-context-parallel-size", "--dcp-size",
)  # fmt: skip
"""Options that divide memory in ways `fit` does not know: nothing is said rather than something wrong."""
_BURST_PER_S: Final = 200.0


def judge_physics(context: Context) -> None:
    """Memory fraction and burst always; the rest where model and GPU are named."""
    profile = profile_of(context)
    _fraction(context, profile)
    _burst(context, profile)
    shape, gpu = context.request.shape, context.request.gpu
    if shape is None:
        return
    _parallelism(context, profile)
    _rope(context, profile)
    if gpu is None:
        return
    _formats(context, profile)
    _lowered(context, profile)
    if not divides(shape, profile.gpus or 1) or any(context.parsed.find(name) for name in _OTHER_SHARES):
        return
    try:
        found = fit(shape, gpu, profile)
    except BadInputError:
        # A fraction of 3 or 0 GPUs: the rules on values have said so.
        return
    _memory(context, profile, found)
    _sequences(context, profile, found)
    _step(context, profile)


def profile_of(context: Context) -> LaunchProfile:
    """The engine-neutral settings a launch amounts to; what it does not say, or not readably, is left out."""
    fields: dict[str, object] = {"kind": context.launch.engine}
    for field, kind in (
        ("gpus", int), ("stages", int), ("memory_fraction", float), ("step_tokens", int), ("max_sequences", int),
        ("context_tokens", int), ("block_tokens", int), ("kv_cache", str), ("dtype", str), ("quantization", str),
    ):  # fmt: skip
        use = used(context, field)
        text = use.value if use is not None else None
        try:
            value = None if text is None else _count(context, text) if kind is int else kind(text)
        except ValueError:
            value = None
        if value is not None and not (isinstance(value, int) and value < 1):
            fields[field] = value
    return LaunchProfile(**fields)  # type: ignore[arg-type]


def _count(context: Context, text: str) -> int:
    """A count as the engine reads it: vLLM's `8k` is 8000 and its `8K` 8192. Raises ValueError."""
    binary = {"K": "ki", "M": "Mi"}.get(text[-1:]) if context.launch.engine == "vllm" else None
    if binary is not None:
        text = text[:-1] + binary
    return parse_count(text)


def used(context: Context, field: str) -> Use | None:
    """How the launch says one neutral setting."""
    return context.parsed.find(WORDS[field][context.launch.engine])


def _at(context: Context, field: str) -> int:
    use = used(context, field)
    return use.word.start if use is not None else context.start


def _fraction(context: Context, profile: LaunchProfile) -> None:
    fraction = profile.memory_fraction
    if fraction is not None and _SAFE_FRACTION[context.launch.engine] < fraction <= 1:
        context.say(
            "memory-fraction-high",
            _at(context, "memory_fraction"),
            f"a memory fraction of {fraction:g} leaves too little beside the engine's share",
            why="CUDA graphs, NCCL and allocator slack live there; such servers die on concurrent long prompts"
            " (vllm-project/vllm#13100 at 0.99, #13267 at 0.97)",
            advice="0.92 is measured to work; check with tidegate fit",
        )


def _burst(context: Context, profile: LaunchProfile) -> None:
    sequences = profile.max_sequences
    rate = context.request.rate_per_s
    queue = context.parsed.find("--max-num-queued-reqs" if context.launch.engine == "vllm" else "--max-queued-requests")
    said = (queue.value or "") if queue is not None else ""
    waiting = int(said) if said.isdigit() else 0
    if sequences is None:
        return
    if rate is None:
        if not (queue is not None and sequences <= 256 and waiting <= 256):
            return
        rate = _BURST_PER_S
    running = rate * context.request.answer_s
    if running > sequences:
        held = (sequences + waiting) / rate
        then = "the queue grows without bound" if queue is None else "more is refused"
        context.say(
            "burst-capacity",
            _at(context, "max_sequences"),
            f"{rate:g} requests/s of {context.request.answer_s:g} s each are {running:.0f} at once; this runs"
            f" {sequences} and queues {waiting or 'the rest'}: after {held:.1f} s {then}",
            advice="raise the sequences and the step budget (1024 and 32768 if memory allows), add instances,"
            " and bound admission in front",
        )


def _lowered(context: Context, profile: LaunchProfile) -> None:
    """vLLM's defaults grow with the GPU; a value from older days lowers them."""
    gpu = context.request.gpu
    assert gpu is not None
    if context.launch.engine != "vllm" or gpu.memory_gib < 70 or gpu.name.startswith("a100"):
        return
    unasked = step_tokens(LaunchProfile(), gpu)
    for field, value, default in (
        ("max_sequences", profile.max_sequences, 1024),
        ("step_tokens", profile.step_tokens, unasked),
    ):
        use = used(context, field)
        if use is not None and value is not None and value <= default:
            rule = "below-default" if value < default else "default-restated"
            how = "is below what" if value < default else "is what"
            why = f"the default on {gpu.name} is {default}"
            context.say(rule, use.word.start, f"{use.name} {value} {how} vLLM takes by itself here", why=why)


def _parallelism(context: Context, profile: LaunchProfile) -> None:
    shape = context.request.shape
    assert shape is not None
    if profile.gpus is not None and not divides(shape, profile.gpus):
        sizes = ", ".join(str(size) for size in possible_sizes(shape, 16))
        context.say(
            "parallelism-impossible",
            _at(context, "gpus"),
            f"{shape.heads} heads and {shape.kv_heads} KV heads cannot be split over {profile.gpus} GPUs",
            advice=f"possible: {sizes}",
        )


def _rope(context: Context, profile: LaunchProfile) -> None:
    shape = context.request.shape
    assert shape is not None
    overridden = context.parsed.find("--hf-overrides") or context.parsed.find("--json-model-override-args")
    limit, asked = shape.context_limit, profile.context_tokens
    if asked is not None and limit and asked > limit and overridden is None:
        context.say(
            "context-beyond-rope",
            _at(context, "context_tokens"),
            f"a context of {asked} exceeds the {limit} positions of {shape.architecture}",
            why="beyond them rotary embeddings were never trained: long answers degrade, and vLLM refuses to start",
            advice=f"use at most {limit}, or a RoPE scaling the model was made for",
        )


def _formats(context: Context, profile: LaunchProfile) -> None:
    gpu = context.request.gpu
    assert gpu is not None
    if profile.kv_cache in ("fp8", "fp8_e4m3") and not gpu.fp8:
        context.say(
            "kv-format-unsupported",
            _at(context, "kv_cache"),
            f"an FP8 (e4m3) KV cache needs compute capability 8.9; {gpu.name} has {gpu.capability / 10}",
            why="it fails when kernels are compiled, after the whole load (vllm-project/vllm#26431)",
            advice="use fp8_e5m2 where the version allows it, else auto" if gpu.bf16 else "use auto",
        )
    if profile.dtype in ("bfloat16", "bf16") and not gpu.bf16:
        context.say(
            "dtype-unsupported",
            _at(context, "dtype"),
            f"bfloat16 needs compute capability 8.0; {gpu.name} has {gpu.capability / 10}",
            advice="use --dtype half",
        )


def _memory(context: Context, profile: LaunchProfile, found: Fit) -> None:
    at = _at(context, "memory_fraction")
    if found.kv_bytes <= 0:
        context.say(
            "weights-do-not-fit",
            at,
            f"weights ({found.weights_bytes / GIB:.1f} GiB) and working memory exceed the"
            f" {found.budget_bytes / GIB:.1f} GiB share of each GPU by {-found.kv_bytes / GIB:.1f} GiB",
            advice="more GPUs, FP8 weights, or a larger GPU",
        )
        return
    if found.concurrency < 1:
        context.say(
            "kv-too-small",
            _at(context, "context_tokens"),
            f"the KV cache holds {found.kv_tokens} tokens, less than one request of {found.context_tokens}",
            advice=f"lower the context to {max(1, found.kv_tokens // 1024) * 1024} or add GPUs",
        )
    if found.headroom_bytes < found.headroom_wanted_bytes:
        least = found.headroom_bytes < found.headroom_wanted_bytes // 2
        context.say(
            "headroom-small",
            at,
            f"{found.headroom_bytes / GIB:.1f} GiB stay free on each GPU; {found.headroom_wanted_bytes / GIB:.1f} are"
            " advised",
            why="concurrent long prompts and fragmentation need it (vllm-project/vllm#13100, #13267)",
            severity=Severity.ERROR if least else None,
        )


def _sequences(context: Context, profile: LaunchProfile, found: Fit) -> None:
    sequences = profile.max_sequences
    if sequences is None or found.kv_tokens <= 0:
        return
    each = found.kv_tokens / sequences
    if each < _USUAL_TOKENS:
        context.say(
            "kv-shared-thin",
            _at(context, "max_sequences"),
            f"{sequences} sequences share {found.kv_tokens} KV tokens: {each:.0f} each before preemption begins",
            advice=f"{max(1, found.kv_tokens // _USUAL_TOKENS)} sequences keep {_USUAL_TOKENS} tokens each",
        )


def _step(context: Context, profile: LaunchProfile) -> None:
    shape, gpu = context.request.shape, context.request.gpu
    assert shape is not None
    assert gpu is not None
    tokens = step_tokens(profile, gpu)
    speed = gpu.bf16_tflops * 1e12 * _EFFICIENCY * (profile.gpus or 1)
    if gpu.fp8 and (shape.weights == "fp8" or (profile.quantization or "").startswith("fp8")):
        speed *= 2
    step_s = 2 * shape.active_parameters * tokens / speed
    if step_s > context.request.itl_s:
        fitting = int(tokens * context.request.itl_s / step_s) // 256 * 256
        context.say(
            "step-exceeds-itl",
            _at(context, "step_tokens"),
            f"a step full of prompts ({tokens} tokens) takes about {step_s * 1e3:.0f} ms, and open streams wait for"
            f" it: the ITL promised is {context.request.itl_s * 1e3:.0f} ms",
            why="measured, 8B on one H200: gap P99 207 ms at 8192 tokens, 66 ms at 2048; TTFT grows instead",
            advice=f"about {max(256, fitting)} tokens keep the promise",
        )
