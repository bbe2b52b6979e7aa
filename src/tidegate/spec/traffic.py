"""Traffic as it will come: phases, arrivals, lengths, traces (reference: measuring.md, the mission's scenario)."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from tidegate.spec.quantity import Count, Fraction, PositiveCount, PositiveSeconds, Rate


class LengthSpec(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Prompt and answer lengths: a fitted distribution plus a share of very long prompts.

    `distribution` names one fitted to a public trace (`azure-conv`, `azure-code`, `mooncake`), or `uniform` over
    [`prompt_min`, `prompt_max`] and [`output_min`, `output_max`].
    """

    distribution: Literal["azure-conv", "azure-code", "mooncake", "uniform"] = "azure-conv"
    prompt_min_tokens: PositiveCount = field(default=128, name="prompt_min")
    prompt_max_tokens: PositiveCount = field(default=4096, name="prompt_max")
    """Draws of every distribution are clamped to [`prompt_min`, `prompt_max`]; long prompts are drawn apart."""
    output_min_tokens: PositiveCount = field(default=8, name="output_min")
    output_max_tokens: PositiveCount = field(default=512, name="output_max")
    long_share: Fraction = 0.2
    long_min_tokens: PositiveCount = field(default=4_096, name="long_min")
    long_max_tokens: PositiveCount = field(default=8_192, name="long_max")


class PhaseSpec(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A stretch of time with one kind of arrivals."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,40}$")]
    duration_s: PositiveSeconds = field(name="duration")
    rate: Rate
    """Requests per second."""
    arrivals: Literal["poisson", "constant", "gamma"] = "poisson"
    burstiness: Annotated[float, Meta(gt=0, le=20)] = 1.0
    """Coefficient of variation of the gaps, for `gamma`; 1 is Poisson."""


class TraceSpec(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Replay of a recorded trace instead of phases."""

    file: str
    format: Literal["azure", "mooncake"]
    start_s: Annotated[float, Meta(ge=0, extra={"unit": "duration"})] = field(default=0.0, name="start")
    duration_s: PositiveSeconds | None = field(default=None, name="duration")
    """Length of the slice in the trace's own time; all of it by default."""
    speed: Annotated[float, Meta(gt=0, le=1000)] = 1.0
    """10 plays the slice ten times faster."""


class TrafficSpec(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a load run sends. `trace` excludes `phases`."""

    seed: Count = 1
    warmup_requests: Count = 100
    lengths: LengthSpec = LengthSpec()
    phases: list[PhaseSpec] = []
    trace: TraceSpec | None = None
    stream_share: Fraction = 1.0
    """Share of requests that ask for streaming."""
