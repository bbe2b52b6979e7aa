"""`tidegate fit`: whether a model fits, and what is left for the KV cache."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from tidegate.cli.model_files import read_model
from tidegate.engines.fit import Fit, Gpu, ModelShape, find_gpu, fit
from tidegate.engines.fit.memory import possible_sizes
from tidegate.engines.profile import LaunchProfile, built_in
from tidegate.engines.versions import parse_engine
from tidegate.errors import BadInputError, ExitCode
from tidegate.units import format_bytes, parse_count, parse_fraction

_BAR: Final = 60
_PARTS: Final = (("weights", "W"), ("activations", "A"), ("KV cache", "K"), ("graphs", "G"), ("free", "·"))


def command(
    model: Annotated[Path, typer.Argument(help="The model's folder or its config.json.")],
    gpu: Annotated[str, typer.Option(help="The GPU, for example H100, h200_sxm or l40s.")],
    profile: Annotated[str, typer.Option(help="defaults, flood or long-chat.")] = "defaults",
    engine: Annotated[str | None, typer.Option(help="vllm or sglang; they share memory out differently.")] = None,
    gpus: Annotated[int | None, typer.Option(min=1, max=1024, help="Tensor-parallel GPUs of one instance.")] = None,
    stages: Annotated[int | None, typer.Option(min=1, max=1024, help="Pipeline stages, each of --gpus GPUs.")] = None,
    memory_fraction: Annotated[str | None, typer.Option(help="Share of GPU memory the engine takes.")] = None,
    context: Annotated[str | None, typer.Option(help="Tokens of one request, for example 8k.")] = None,
    step_tokens: Annotated[str | None, typer.Option(help="Step budget in tokens.")] = None,
    max_sequences: Annotated[str | None, typer.Option(help="Requests run at once.")] = None,
    kv_cache: Annotated[str | None, typer.Option(help="KV format: auto, fp8, fp8_e5m2.")] = None,
    quantization: Annotated[str | None, typer.Option(help="fp8 quantizes 16-bit weights at load.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Figures as JSON on stdout, sizes in bytes.")] = False,
) -> ExitCode:
    """Weights, KV tokens, working memory and headroom of one instance. Exit 0: it fits; 1: not; 3: bad input."""
    shape = read_model(model)
    card = find_gpu(gpu)
    changes = _changes(
        engine, gpus, stages, memory_fraction, context, step_tokens, max_sequences, kv_cache, quantization
    )
    wanted = msgspec.structs.replace(built_in(profile), **changes)
    found = fit(shape, card, wanted)
    if json:
        print(msgspec.json.format(msgspec.json.encode(_plain(shape, card, found)), indent=2).decode())
    else:
        for line in report_lines(shape, card, wanted, found):
            print(line)
    return ExitCode.OK if found.fits and found.headroom_bytes > 0 else ExitCode.FAILED


def _changes(
    engine: str | None,
    gpus: int | None,
    stages: int | None,
    memory_fraction: str | None,
    context: str | None,
    step_tokens: str | None,
    max_sequences: str | None,
    kv_cache: str | None,
    quantization: str | None,
) -> dict[str, object]:
    """What the options say beyond the profile."""
    try:
        said: dict[str, object | None] = {
            "kind": parse_engine(engine)[0] if engine is not None else None,
            "gpus": gpus,
            "stages": stages,
            "memory_fraction": parse_fraction(memory_fraction) if memory_fraction is not None else None,
            "context_tokens": _count(context),
            "step_tokens": _count(step_tokens),
            "max_sequences": _count(max_sequences),
            "kv_cache": kv_cache,
            "quantization": quantization,
        }
    except ValueError as exc:
        raise BadInputError(str(exc), hint="for example --memory-fraction 0.9 --context 8k") from None
    return {name: value for name, value in said.items() if value is not None}


def _count(text: str | None) -> int | None:
    if text is None:
        return None
    value = parse_count(text)
    if value < 1:
        raise ValueError(f"{text} is not a positive count")
    return value


def report_lines(shape: ModelShape, gpu: Gpu, profile: LaunchProfile, found: Fit) -> list[str]:
    """The table and the bar."""
    left = found.headroom_bytes
    advised = "" if left >= found.headroom_wanted_bytes else f", {format_bytes(found.headroom_wanted_bytes)} advised"
    rows = [
        ("model", f"{shape.architecture}, {shape.parameters / 1e9:.2f} B parameters, weights {shape.weights}"),
        ("instance", f"{profile.kind} on {found.gpus} × {gpu.name} of {format_bytes(found.total_bytes)}"),
        ("engine's share", format_bytes(found.budget_bytes)),
        ("weights", format_bytes(found.weights_bytes)),
        ("activations", f"{format_bytes(found.activation_bytes)} (estimate)"),
        ("KV cache", f"{format_bytes(found.kv_bytes)}, {found.kv_tokens:,} tokens, {_per_token(found)}"),
        ("CUDA graphs", f"{format_bytes(found.graph_bytes)} (estimate)"),
        ("free", f"{format_bytes(left)}{advised}"),
        ("concurrency", f"{found.concurrency:.1f} requests of {found.context_tokens:,} tokens"),
    ]
    lines = [f"{name:<15} {text}" for name, text in rows]
    lines += ["", _bar(found), "  ".join(f"{mark} {name}" for name, mark in _PARTS)]
    lines += [f"does not fit: {problem}" for problem in found.problems]
    if found.kv_bytes <= 0:
        sizes = [size for size in possible_sizes(shape, 16) if size > (profile.gpus or 1)]
        lines += [f"possible tensor-parallel sizes above: {', '.join(map(str, sizes))}"] if sizes else []
    return lines


def _per_token(found: Fit) -> str:
    each = f"{format_bytes(found.kv_bytes_per_token)} a token"
    if found.window_bytes_per_sequence:
        each += f" + {format_bytes(found.window_bytes_per_sequence)} a request for sliding windows"
    return each


def _bar(found: Fit) -> str:
    """One GPU from left to right, a character for each sixtieth."""
    sizes = (found.weights_bytes, found.activation_bytes, max(0, found.kv_bytes), found.graph_bytes)
    done = ""
    for size, (_, mark) in zip(sizes, _PARTS):
        done += mark * max(1 if size > 0 else 0, round(_BAR * size / found.total_bytes))
    return f"[{done[:_BAR]:·<{_BAR}}]"


def _plain(shape: ModelShape, gpu: Gpu, found: Fit) -> dict[str, object]:
    model = {"architecture": shape.architecture, "parameters": shape.parameters, "weights": shape.weights}
    return {"model": model, "gpu": gpu.name, **msgspec.to_builtins(found)}
