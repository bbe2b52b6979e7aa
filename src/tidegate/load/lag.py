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
    lag_p99_s: float | None, median_gap_s: float | None, achieved_share: float | None, held_back: int
) -> str:
    """Why a run is client-bound, in one phrase; empty when it is not.

    `lag_p99_s` is of sends; `held_back` counts requests that had to wait for one of the driver's own connections.
    """
    if achieved_share is not None and achieved_share < LEAST_ACHIEVED_SHARE:
        cause = f" ({held_back} requests waited for a free connection)" if held_back else ""
        return f"sent {achieved_share:.1%} of the offered requests in time, less than 98 %{cause}"
    if lag_p99_s is None or not exceeds_gap_share(lag_p99_s, median_gap_s):
        return ""
    return f"send lag P99 {_ms(lag_p99_s)} exceeds 10 % of the median gap ({_ms(median_gap_s or 0.0)})"


def loop_lag_note(loop_lag_p99_s: float | None, median_gap_s: float | None) -> str:
    """What to know when chunk times are not to be trusted to a tenth of a gap; empty when they are."""
    if loop_lag_p99_s is None or not exceeds_gap_share(loop_lag_p99_s, median_gap_s):
        return ""
    return f"the driver's event loop ran up to {_ms(loop_lag_p99_s)} late (P99); single chunk times are that uncertain"


def exceeds_gap_share(lag_s: float, median_gap_s: float | None) -> bool:
    """Whether a lag is more than a tenth of the median gap; never where there was no gap."""
    return median_gap_s is not None and lag_s > LAG_SHARE_OF_GAP * median_gap_s


def _ms(duration_s: float) -> str:
    return f"{duration_s * 1e3:.1f} ms"
