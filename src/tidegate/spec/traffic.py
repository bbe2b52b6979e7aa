"""Traffic as it will come: phases, arrivals, lengths, traces (reference: measuring.md, the mission's scenario)."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from tidegate.spec.quantity import Count, Fraction, PositiveCount, PositiveSeconds, Rate, Seconds, Text

PhaseName = Annotated[
    str,
    Meta(pattern=r"^[A-Za-z0-9_-]{1,40}$", extra={"expects": "a name (1 to 40 of A-Z a-z 0-9 _ -)"}),
]


class LengthSpec(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Prompt and answer lengths: a fitted distribution plus a share of very long prompts.

    `distribution` names one fitted to a public trace (`azure-conv`, `azure-code`, `mooncake`), or `uniform` over
    [`prompt_min`, `prompt_max`] and [`output_min`, `output_max`].
    """

    distribution: Literal["azure-conv", "azure-code", "mooncake", "uniform"] = "azure-conv"
    """Where lengths come from: fitted to a public trace, or even odds between the bounds."""
    prompt_min_tokens: PositiveCount = field(default=128, name="prompt_min")
    """Shortest prompt."""
    prompt_max_tokens: PositiveCount = field(default=4096, name="prompt_max")
    """Longest ordinary prompt. Every draw is clamped to these bounds; long prompts are drawn apart."""
    output_min_tokens: PositiveCount = field(default=8, name="output_min")
    """Shortest answer."""
    output_max_tokens: PositiveCount = field(default=512, name="output_max")
    """Longest answer."""
    long_share: Fraction = 0.2
    """Share of requests whose prompt is long."""
    long_min_tokens: PositiveCount = field(default=4_096, name="long_min")
    """Shortest long prompt."""
    long_max_tokens: PositiveCount = field(default=8_192, name="long_max")
    """Longest long prompt."""


class PhaseSpec(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A stretch of time with one kind of arrivals."""

    name: PhaseName
    """What reports call this stretch."""
    duration_s: PositiveSeconds = field(name="duration")
    """How long it lasts."""
    rate: Rate
    """Requests per second."""
    arrivals: Literal["poisson", "constant", "gamma"] = "poisson"
    """How requests are spread over the stretch."""
    burstiness: Annotated[float, Meta(gt=0, le=20)] = 1.0
    """Coefficient of variation of the gaps, for `gamma`; 1 is Poisson."""


class TraceSpec(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Replay of a recorded trace instead of phases."""

    file: Text
    """Path of the trace, relative to where the command runs."""
    format: Literal["azure", "mooncake"]
    """Azure's CSV or Mooncake's JSONL."""
    start_s: Seconds = field(default=0.0, name="start")
    """Where the slice begins, in the trace's own time."""
    duration_s: PositiveSeconds | None = field(default=None, name="duration")
    """Length of the slice in the trace's own time; all of it by default."""
    speed: Annotated[float, Meta(gt=0, le=1000)] = 1.0
    """10 plays the slice ten times faster."""


class TrafficSpec(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a load run sends. `trace` excludes `phases`."""

    seed: Count = 1
    """Equal seeds send equal traffic."""
    warmup_requests: Count = 100
    """Requests at the start that are left out of every figure."""
    lengths: LengthSpec = LengthSpec()
    """How long prompts and answers are."""
    phases: list[PhaseSpec] = []
    """Stretches of time, one after the other."""
    trace: TraceSpec | None = None
    """A recording to replay instead of phases."""
    stream_share: Fraction = 1.0
    """Share of requests that ask for streaming."""
