"""How late the driver itself is: sends after their schedule, and timers after their time.

A late driver makes a healthy server look slow. The rule of measuring.md: a run whose client lag P99 exceeds 10 % of
the median gap, or that achieved less than 98 % of the offered rate, is client-bound and must not be quoted.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from tidegate.traffic.histogram import Histogram

LAG_SHARE_OF_GAP: Final = 0.10
LEAST_ACHIEVED_SHARE: Final = 0.98
_PERIOD_S: Final = 0.02


class LoopLag:
    """Measures how late the event loop's timers fire, every 20 ms."""

    def __init__(self) -> None:
        self.histogram = Histogram()
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0

    def start(self) -> None:
        """Begins to measure on the running loop."""
        self._due_s = time.monotonic() + _PERIOD_S
        self._timer = asyncio.get_running_loop().call_later(_PERIOD_S, self._fired)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fired(self) -> None:
        self.histogram.record(time.monotonic() - self._due_s)
        self.start()


def client_bound_why(
    lag_p99_s: float | None,
    loop_lag_p99_s: float | None,
    median_gap_s: float | None,
    achieved_share: float | None,
    held_back: int,
) -> str:
    """Why a run is client-bound, in one phrase; empty when it is not.

    `held_back` counts requests that had to wait for one of the driver's own connections.
    """
    if achieved_share is not None and achieved_share < LEAST_ACHIEVED_SHARE:
        cause = f" ({held_back} requests waited for a free connection)" if held_back else ""
        return f"sent {achieved_share:.1%} of the offered requests in time, less than 98 %{cause}"
    if median_gap_s is None:
        return ""
    limit_s = LAG_SHARE_OF_GAP * median_gap_s
    for what, lag_s in (("send lag", lag_p99_s), ("event-loop lag", loop_lag_p99_s)):
        if lag_s is not None and lag_s > limit_s:
            return f"{what} P99 {lag_s * 1e3:.1f} ms exceeds 10 % of the median gap ({median_gap_s * 1e3:.1f} ms)"
    return ""
