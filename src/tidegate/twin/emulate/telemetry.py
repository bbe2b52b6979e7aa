"""What an emulated engine counts beside the twin's own statistics: vLLM's request histograms and its own honesty.

Times of requests are wall-clock seconds; gaps between tokens are the engine's own step ends, as vLLM's are.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from tidegate.twin.emulate.job import Choice

LATENCY_S: Final = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip
FIRST_TOKEN_S: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)  # fmt: skip
GAP_S: Final = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
STEP_TOKENS: Final = tuple(float(2**power) for power in (0, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14))
PREEMPTIONS: Final = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)
CHOICES: Final = (1.0, 2.0, 5.0, 10.0, 20.0)
LATE_STEPS_ALLOWED: Final = 0.01
"""Share of steps that may end late by more than themselves before the emulation says it did not keep pace."""


class Histogram:
    """Counts below each bound, Prometheus style. Observing is O(log bounds)."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times


def token_bounds(most: int) -> tuple[float, ...]:
    """1, 2, 5, 10, … up to `most`."""
    return tuple(float(m * 10**e) for e in range(10) for m in (1, 2, 5) if m * 10**e <= most)


class Pace:
    """Whether the wall clock could follow the model: how late steps ended."""

    __slots__ = ("lag_s", "late_steps", "longest_lag_s", "steps", "total_lag_s")

    def __init__(self) -> None:
        self.lag_s = 0.0
        self.longest_lag_s = 0.0
        self.total_lag_s = 0.0
        self.late_steps = 0
        self.steps = 0

    def note(self, lag_s: float, step_s: float) -> None:
        """A step of `step_s` ended `lag_s` after its time."""
        lag_s = max(lag_s, 0.0)
        self.steps += 1
        self.lag_s = lag_s
        self.total_lag_s += lag_s
        if lag_s > self.longest_lag_s:
            self.longest_lag_s = lag_s
        if lag_s > step_s:
            self.late_steps += 1

    @property
    def kept(self) -> bool:
        """The figures of this engine are those of its model, not of this machine."""
        return self.late_steps <= LATE_STEPS_ALLOWED * self.steps


class Telemetry:
    """All histograms and counters of one emulated engine. See `page` for their names."""

    def __init__(self, context_tokens: int) -> None:
        bounds = token_bounds(context_tokens)
        self.pace = Pace()
        self.finished = {"stop": 0, "length": 0, "abort": 0, "error": 0, "repetition": 0}
        self.client_aborts = 0
        """Requests whose client left; vLLM does not count them in `finished`."""
        self.prompt_tokens = Histogram(bounds)
        self.generation_tokens = Histogram(bounds)
        self.step_tokens = Histogram(STEP_TOKENS)
        self.max_generation_tokens = Histogram(bounds)
        self.params_n = Histogram(CHOICES)
        self.params_max_tokens = Histogram(bounds)
        self.first_token_s = Histogram(FIRST_TOKEN_S)
        self.gap_s = Histogram(GAP_S)
        self.token_s = Histogram(GAP_S)
        self.latency_s = Histogram(LATENCY_S)
        self.queue_s = Histogram(LATENCY_S)
        self.inference_s = Histogram(LATENCY_S)
        self.prefill_s = Histogram(LATENCY_S)
        self.decode_s = Histogram(LATENCY_S)
        self.preemptions = Histogram(PREEMPTIONS)
        self.computed_tokens = Histogram(bounds)

    def ended(self, choice: Choice, now: float) -> None:
        """A choice ended with a finish reason."""
        job, sequence = choice.job, choice.sequence
        self.finished[choice.reason] += 1
        self.latency_s.observe(now - job.arrived_s)
        self.prompt_tokens.observe(float(sequence.prompt_tokens))
        self.generation_tokens.observe(float(choice.made))
        self.max_generation_tokens.observe(float(choice.made))
        self.params_n.observe(float(job.order.choices))
        self.params_max_tokens.observe(float(job.order.limit_tokens))
        self.preemptions.observe(float(sequence.preemptions))
        if choice.first_s >= 0.0:
            self._phases(choice, now)

    def _phases(self, choice: Choice, now: float) -> None:
        scheduled_s = choice.scheduled_s if choice.scheduled_s >= 0.0 else choice.first_s
        self.queue_s.observe(max(scheduled_s - choice.job.arrived_s, 0.0))
        self.prefill_s.observe(max(choice.first_s - scheduled_s, 0.0))
        self.inference_s.observe(max(now - scheduled_s, 0.0))
        self.decode_s.observe(max(now - choice.first_s, 0.0))
        self.computed_tokens.observe(float(choice.sequence.prompt_tokens - choice.cached_tokens))
        if choice.made > 1:
            self.token_s.observe((now - choice.first_s) / (choice.made - 1))
