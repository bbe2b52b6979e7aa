"""Reads the packaged step-time tables (`tables/README.md` has their source and licence).

In: names of a model, a GPU and an engine. Out: a checked `StepTable`. What is not there is a `BadInputError` that
names what is.
"""

from __future__ import annotations

import gzip
from functools import cache
from importlib import resources
from typing import Final

import msgspec
from msgspec import Struct

from tidegate.errors import BadInputError
from tidegate.spec import EngineProfile

SUFFIX: Final = ".json.gz"


class Axes(Struct, frozen=True):
    """Knots of the tables, ascending."""

    tokens: list[int]
    decode_tokens: list[int]
    attention_tokens: list[int]
    prefix_tokens: list[int]
    batch: list[int]
    context_tokens: list[int]


class Linear(Struct, frozen=True):
    """What depends only on the tokens in a step: ms by `Axes.tokens` and `Axes.decode_tokens`."""

    prefill_linear_ms: list[float]
    decode_linear_ms: list[float]


class Attention(Struct, frozen=True):
    """Prefill attention in ms by [attention_tokens][prefix_tokens], decode attention by [batch][context_tokens]."""

    prefill_attention_ms: list[list[float]]
    decode_attention_ms: list[list[float]]


class Memory(Struct, frozen=True):
    """Bytes per GPU."""

    gpu_capacity_bytes: int
    weight_bytes_per_gpu: int
    runtime_overhead_bytes_per_gpu: int
    communication_bytes_per_gpu: int
    kv_bytes_per_token_per_gpu: int
    activation_bytes_per_gpu_by_step_tokens: dict[str, int]


class Config(Struct, frozen=True):
    """One parallelism and dtype: which parts to use, and its memory."""

    tensor_parallel: int
    weights: str
    kv_cache: str
    linear: str
    attention: str
    memory: Memory


class Flops(Struct, frozen=True):
    """Two per multiply-add, whole model."""

    linear_flops_per_token: float
    logits_flops_per_sampled_token: float
    attention_flops_per_token_per_context_token: float


class StepTable(Struct, frozen=True):
    """One file: a model on a GPU with an engine."""

    model: str
    system: str
    engine: str
    engine_version: str
    gpu: dict[str, float | None]
    """Dense peaks; None for a dtype the hardware lacks."""
    flops: Flops
    axes: Axes
    linear: dict[str, Linear]
    attention: dict[str, Attention]
    configs: dict[str, Config]


def available() -> list[tuple[str, str, str]]:
    """(model, system, engine) of every packaged table, sorted."""
    names = [entry.name for entry in resources.files("tidegate.twin.tables").iterdir()]
    stems = [name.removesuffix(SUFFIX).rsplit(".", 2) for name in names if name.endswith(SUFFIX)]
    return sorted((stem[0], stem[1], stem[2]) for stem in stems)


@cache
def load(model: str, system: str, engine: str) -> StepTable:
    """The table of that name, which must be one of `available()`."""
    data = resources.files("tidegate.twin.tables").joinpath(f"{model}.{system}.{engine}{SUFFIX}").read_bytes()
    return msgspec.json.decode(gzip.decompress(data), type=StepTable)


def find(profile: EngineProfile) -> tuple[StepTable, Config]:
    """The table and configuration for a profile. Raises `BadInputError` when there is none."""
    known = available()
    wanted = (profile.shape, profile.hardware, profile.kind)
    if wanted not in known:
        raise BadInputError(
            f"no step table for model shape {profile.shape!r} on {profile.hardware!r} with {profile.kind!r}",
            hint="tables exist for " + "; ".join(" ".join(entry) for entry in known),
        )
    table = load(*wanted)
    key = f"tp{profile.gpus}_{profile.weights}_kv{profile.kv_cache}"
    if key not in table.configs:
        raise BadInputError(
            f"no step times for {profile.shape} on {profile.gpus}×{profile.hardware} with {profile.weights} weights"
            f" and {profile.kv_cache} KV cache",
            hint="configurations of this table: " + ", ".join(sorted(table.configs)),
        )
    return table, table.configs[key]
