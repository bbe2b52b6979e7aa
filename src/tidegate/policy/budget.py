"""One rate budget: GCRA over requests or tokens, with reserve and settle (design.md §4.4).

Theory. A budget of `per_minute` units with a burst of `burst` units is a bucket that holds `burst` and fills evenly.
GCRA keeps it as one number, the theoretical arrival time `tat`: spending n units moves it on by n intervals of
60 / per_minute seconds, time passing lets it fall behind `now`, and a spend is allowed while the result lies at most
`burst` intervals ahead of `now`. A request reserves its estimate and settles with what it really used: the
difference moves `tat`, forwards into debt where the estimate was low (which later requests wait out), backwards where
it was high or the request was aborted. The overshoot of a minute is therefore at most one reservation's error.
(GCRA: ITU-T I.371; the token-bucket reading: any network text.)
"""

from __future__ import annotations


class Budget:
    """See the module's docstring. Units are requests or tokens."""

    __slots__ = ("_interval_s", "_tat_s", "burst", "per_minute")

    def __init__(self, per_minute: float, burst: float) -> None:
        self.per_minute = per_minute
        self.burst = burst
        self._interval_s = 60.0 / per_minute
        self._tat_s = -1e300

    def wait_s(self, units: float, now: float) -> float:
        """Seconds until `units` could be spent: 0 now, -1 never (more than the whole bucket holds)."""
        if units > self.burst:
            return -1.0
        ahead = max(self._tat_s - now, 0.0) + (units - self.burst) * self._interval_s
        return max(0.0, ahead)

    def spend(self, units: float, now: float) -> None:
        """Takes `units` out, allowed or not; ask `wait_s` first."""
        self._tat_s = max(self._tat_s, now) + units * self._interval_s

    def settle(self, reserved: float, used: float) -> None:
        """Corrects a reservation: `used` 0 gives it all back."""
        self._tat_s += (used - reserved) * self._interval_s

    def remaining(self, now: float) -> int:
        """Whole units that could be spent now; 0 while in debt."""
        ahead = max(self._tat_s - now, 0.0)
        return max(0, int(self.burst - ahead / self._interval_s + 1e-9))

    def reset_s(self, now: float) -> float:
        """Seconds until the bucket is full again."""
        return max(0.0, self._tat_s - now)

    def resize(self, per_minute: float, burst: float, now: float) -> None:
        """New limits, same spending: the units spoken for stay spoken for."""
        spoken = max(self._tat_s - now, 0.0) / self._interval_s
        self.per_minute, self.burst = per_minute, burst
        self._interval_s = 60.0 / per_minute
        self._tat_s = now + spoken * self._interval_s
