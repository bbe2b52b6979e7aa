"""The fault breaker of one instance: its recent failure rate, and who may try it while it is open (design.md §5).

Theory. Answers are counted in a sliding window of `BUCKETS` buckets. What counts as a failure is a broken connection,
an answer that does not parse, 5xx other than 503, and a first token that never came; 4xx are the client's fault and
429 and 503 are back-pressure, so neither is counted at all. With at least `min_requests` in the window and a share of
failures of `failure_share` or more the breaker opens for a cool-off; then it is half open and lets exactly one
request through, its trial. The trial's success closes it and empties the window, its failure opens it again for twice
as long, and a trial that ends without a verdict (its client left) only frees the place for another. A rate is used,
not a run of failures, so that one bad request cannot take an instance out, and an instance that fails every second
request cannot hide.

    CLOSED ──rate──► OPEN ──cool-off──► (half open) TRYING ──ok──► CLOSED
                      ▲                                   └─bad──► OPEN, twice as long
"""

from __future__ import annotations

from typing import Final

from tidegate.spec import BreakerSpec

CLOSED: Final = 0
OPEN: Final = 1
TRYING: Final = 2

STATE_NAMES: Final = ("closed", "open", "half_open")

BUCKETS: Final = 10
LONGEST_COOL_OFF: Final = 16
"""A cool-off doubles up to so many times the configured one."""


class Breaker:
    """See the module's docstring."""

    __slots__ = (
        "_bad", "_bucket", "_bucket_s", "_cool_off_s", "_good", "_share", "_spec_cool_off_s", "_until_s",
        "min_requests", "opened", "state",
    )  # fmt: skip

    def __init__(self, spec: BreakerSpec) -> None:
        self._bucket_s = spec.window_s / BUCKETS
        self._share = spec.failure_share
        self._spec_cool_off_s = spec.cool_off_s
        self.min_requests = spec.min_requests
        self.state = CLOSED
        self.opened = 0
        """How often it opened."""
        self._cool_off_s = spec.cool_off_s
        self._until_s = 0.0
        self._good = [0] * BUCKETS
        self._bad = [0] * BUCKETS
        self._bucket = 0

    def allows(self, now: float) -> bool:
        """Whether a request may be sent: always while closed, one at a time after the cool-off."""
        return self.state == CLOSED or (self.state == OPEN and now >= self._until_s)

    def sent(self) -> bool:
        """A request is sent; true when it is the trial."""
        if self.state != OPEN:
            return False
        self.state = TRYING
        return True

    def good(self, trial: bool, now: float) -> None:
        """An answer came whole, or its first token did."""
        if trial:
            self.state = CLOSED
            self._cool_off_s = self._spec_cool_off_s
            self._good = [0] * BUCKETS
            self._bad = [0] * BUCKETS
        self._turn(now)
        self._good[self._bucket % BUCKETS] += 1

    def bad(self, trial: bool, now: float) -> None:
        """The instance failed a request. A failed trial opens the breaker again; else ask `failing`."""
        self._turn(now)
        self._bad[self._bucket % BUCKETS] += 1
        if trial:
            self._cool_off_s = min(2.0 * self._cool_off_s, LONGEST_COOL_OFF * self._spec_cool_off_s)
            self._open(now)

    def undecided(self, trial: bool, now: float) -> None:
        """A request ended without a verdict on the instance."""
        if trial and self.state == TRYING:
            self.state = OPEN
            self._until_s = now

    def failing(self, now: float) -> bool:
        """Whether the rate says that it should open."""
        if self.state != CLOSED:
            return False
        self._turn(now)
        bad = sum(self._bad)
        total = bad + sum(self._good)
        return total >= self.min_requests and bad >= self._share * total

    def open(self, now: float) -> None:
        """Opens it by rate."""
        self._cool_off_s = self._spec_cool_off_s
        self._open(now)

    def _open(self, now: float) -> None:
        self.state = OPEN
        self.opened += 1
        self._until_s = now + self._cool_off_s

    def _turn(self, now: float) -> None:
        """Moves the window on to `now`."""
        bucket = int(now / self._bucket_s)
        behind = min(bucket - self._bucket, BUCKETS)
        for _ in range(behind):
            self._bucket += 1
            self._good[self._bucket % BUCKETS] = 0
            self._bad[self._bucket % BUCKETS] = 0
        if behind == BUCKETS:
            self._bucket = bucket
