"""What an engine counts, read from its own endpoints: an emulated engine's JSON, or any engine's metrics page.

Counters are cumulative and restart with the engine's process; `Tally` adds up what they grew by. What an engine
does not say is unknown (`None`), never 0.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from tidegate.wire.prometheus import engine_sample, parse, wanted_names

EMULATED_PATH: Final = "/emulated/counters"
METRICS_PATH: Final = "/metrics"
_STARTED: Final = "process_start_time_seconds"
_TOKENS: Final = {
    "vllm": ("vllm:prompt_tokens_total", "vllm:generation_tokens_total"),
    "sglang": ("sglang:prompt_tokens_total", "sglang:generation_tokens_total"),
    "llamacpp": ("llamacpp:prompt_tokens_total", "llamacpp:tokens_predicted_total"),
}


class Reading(Struct):
    """One look at an engine. The first group is cumulative."""

    steps: float | None = None
    busy_s: float | None = None
    preemptions: float | None = None
    model_flops: float | None = None
    prompt_tokens: float | None = None
    output_tokens: float | None = None

    kv_used_fraction: float | None = None
    kv_peak_fraction: float | None = None
    """Highest KV use since the process began."""
    peak_flops_per_s: float | None = None
    gpus: int | None = None
    hardware: str = ""
    started_s: float | None = None
    """When its process began, on its own clock; another value means that it was started again."""
    kept_pace: bool | None = None
    """Emulated engines: whether the wall clock could follow the model."""


CUMULATIVE: Final = ("steps", "busy_s", "preemptions", "model_flops", "prompt_tokens", "output_tokens")


def read_emulated(body: bytes) -> Reading | None:
    """An emulated engine's counters; `None` when the body is not that."""
    try:
        return msgspec.json.decode(body, type=Reading)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def began_anew(before: Reading, after: Reading) -> bool:
    """Whether another process answered than before."""
    return before.started_s is not None and after.started_s is not None and before.started_s != after.started_s


def read_metrics(body: bytes, kind: str) -> Reading:
    """A metrics page of an engine kind (`vllm`, `sglang`, `llamacpp`)."""
    prompt, output = _TOKENS[kind]
    wanted = wanted_names(kind) | {_STARTED, prompt, output}
    page = parse(body.decode("utf-8", "replace"), wanted)
    fields = engine_sample(page, kind)
    return Reading(
        preemptions=fields.preemptions,
        prompt_tokens=page.sum(prompt),
        output_tokens=page.sum(output),
        kv_used_fraction=fields.kv_used_fraction,
        started_s=page.sum(_STARTED),
    )


class Tally:
    """Growth of cumulative counters over many readings, restarts included."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}
        self._grown: dict[str, float] = {}

    def add(self, reading: Reading) -> None:
        """Takes in the next reading."""
        for name in CUMULATIVE:
            value: float | None = getattr(reading, name)
            if value is None:
                continue
            last = self._last.get(name)
            if last is not None:
                self._grown[name] = self._grown.get(name, 0.0) + (value - last if value >= last else value)
            self._last[name] = value

    def restart(self) -> None:
        """Counts from the last reading on."""
        self._grown = dict.fromkeys(self._last, 0.0)

    def grown(self, name: str) -> float | None:
        """How much a counter grew; `None` when the engine never gave it."""
        return self._grown.get(name)
