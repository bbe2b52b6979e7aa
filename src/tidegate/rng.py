"""Randomness: one seed, many named streams.

In: a seed and a name. Out: `Stream` objects whose draws depend on nothing else, so that adding a consumer
never shifts another's numbers and the same seed gives the same run. This is the only module that imports
`random`; the draws are those of CPython's Mersenne Twister, stable across versions for the methods used here.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Sequence


class Stream:
    """A named source of draws. Not for secrets."""

    def __init__(self, seed: int, name: str) -> None:
        digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
        self._random = random.Random(int.from_bytes(digest[:16], "big"))
        self.random: Callable[[], float] = self._random.random
        """A float in [0, 1), as `uniform()` draws it; for loops that draw millions."""
        self.name = name

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        """A float in [low, high)."""
        return low + (high - low) * self._random.random()

    def integer(self, low: int, high: int) -> int:
        """A whole number in [low, high], both ends included; low ≤ high."""
        if low > high:
            raise ValueError(f"no whole number lies in [{low}, {high}]")
        return low + int(self._random.random() * (high - low + 1))

    def chance(self, probability: float) -> bool:
        """True with the given probability."""
        return self._random.random() < probability

    def exponential(self, rate: float) -> float:
        """An exponential gap with mean 1 / rate; rate > 0."""
        return -math.log(1.0 - self._random.random()) / rate

    def gamma(self, shape: float, scale: float) -> float:
        """A gamma variate with mean shape × scale."""
        return self._random.gammavariate(shape, scale)

    def lognormal(self, mu: float, sigma: float) -> float:
        """exp of a normal variate with mean `mu` and deviation `sigma`."""
        return self._random.lognormvariate(mu, sigma)

    def weighted(self, weights: Sequence[float]) -> int:
        """An index drawn in proportion to `weights` (≥ 0), of which one at least is positive."""
        mark = self._random.random() * sum(weights)
        last = -1
        for index, weight in enumerate(weights):
            if weight > 0:
                last = index
                mark -= weight
                if mark < 0:
                    break
        if last < 0:
            raise ValueError("no weight is positive, so nothing can be drawn")
        return last


class Streams:
    """All streams of one seed; asking twice for a name returns the same stream."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._streams: dict[str, Stream] = {}

    def stream(self, name: str) -> Stream:
        """The stream called `name`, created at first use."""
        if name not in self._streams:
            self._streams[name] = Stream(self.seed, name)
        return self._streams[name]
