"""How fast an instance prefills, and how fast a pool drains: measured, never configured.

Theory of the prefill rate. While prompts are outstanding on an instance its prefill is busy; the prompt tokens whose
first token came, divided by that busy time, is a sample of its rate. While at least `CROWD_TOKENS` stayed outstanding
the engine never lacked work, the sample is the rate itself, and an exponentially weighted mean follows it, downwards
too: a slow node shows. With less outstanding a sample is mostly the fixed cost of a step and says only that the rate
is at least that much, so it can raise the estimate and never lower it. Until the first sample the rate is unknown.
"""

from __future__ import annotations

import math
from typing import Final

SAMPLE_TOKENS: Final = 1024
SAMPLE_S: Final = 0.1
"""A sample is taken once this many tokens and this much busy time have come together."""
CROWD_TOKENS: Final = 1024
WEIGHT: Final = 0.3
RATE_WINDOW_S: Final = 5.0
RETRY_AFTER_MIN_S: Final = 1.0
RETRY_AFTER_MAX_S: Final = 60.0


class PrefillRate:
    """Prompt tokens per second that one instance prefills."""

    __slots__ = ("_busy_s", "_crowded", "_since_s", "_tokens", "per_s")

    def __init__(self) -> None:
        self.per_s = 0.0
        """0 while unknown."""
        self._since_s = 0.0
        self._busy_s = 0.0
        self._tokens = 0
        self._crowded = True

    def began(self, now: float, outstanding_tokens: int) -> None:
        """A prompt was sent behind `outstanding_tokens` of others."""
        if outstanding_tokens == 0:
            self._since_s = now

    def done(self, tokens: int, now: float, outstanding_tokens: int) -> None:
        """A prompt's first token is out; `outstanding_tokens` of others remain."""
        self._busy_s += now - self._since_s
        self._since_s = now
        self._tokens += tokens
        if outstanding_tokens < CROWD_TOKENS:
            self._crowded = False
        if self._tokens >= SAMPLE_TOKENS and self._busy_s >= SAMPLE_S:
            self._take(self._tokens / self._busy_s)

    def left(self, now: float) -> None:
        """A prompt went away without a first token: what was busy until now says nothing."""
        self._since_s = now

    def _take(self, sample: float) -> None:
        if self.per_s == 0.0:
            self.per_s = sample
        elif self._crowded:
            self.per_s += WEIGHT * (sample - self.per_s)
        else:
            self.per_s = max(self.per_s, sample)
        self._busy_s = 0.0
        self._tokens = 0
        self._crowded = True


class DrainRate:
    """How many requests a pool finishes per second, exponentially weighted over `RATE_WINDOW_S`."""

    __slots__ = ("_at_s", "_rate")

    def __init__(self) -> None:
        self._rate = 0.0
        self._at_s = 0.0

    def count(self, now: float) -> None:
        """One more finished."""
        self._rate = self.per_s(now) + 1.0 / RATE_WINDOW_S
        self._at_s = now

    def per_s(self, now: float) -> float:
        """The rate at `now`."""
        if self._rate == 0.0:
            return 0.0
        return self._rate * math.exp((self._at_s - now) / RATE_WINDOW_S)

    def retry_after_s(self, ahead: int, now: float) -> float:
        """When room should come for someone behind `ahead` others: whole seconds, at least 1, at most 60."""
        rate = self.per_s(now)
        if rate <= 0.0:
            return RETRY_AFTER_MIN_S
        wait = math.ceil((ahead + 1) / rate)
        return min(max(float(wait), RETRY_AFTER_MIN_S), RETRY_AFTER_MAX_S)
