"""Live progress of a load run on stderr: one line, twice a second; plain lines where there is no terminal."""

from __future__ import annotations

from types import TracebackType
from typing import Final

from rich.console import Console
from rich.live import Live
from rich.text import Text

from tidegate.errors import Outcome
from tidegate.load.driver import Driver
from tidegate.traffic.histogram import Histogram
from tidegate.traffic.record import RequestRecord

_PLAIN_EVERY_TICKS: Final = 10


class ProgressLine:
    """A `Watcher` that shows how a run goes."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._ticks = 0
        self._driver: Driver | None = None
        self._ttft = Histogram()
        self._ended = {"completed": 0, "rejected": 0, "error": 0, "cancelled": 0}

    def __enter__(self) -> ProgressLine:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def __call__(self, stage: str, driver: Driver, planned: int) -> None:
        """Shows the driver's state; called twice a second."""
        if driver is not self._driver:
            self._follow(driver)
        line = self._line(stage, driver, planned)
        if self._console.is_terminal:
            # A line that wraps makes the screen jump: on a narrow terminal its end is cut instead.
            line.no_wrap, line.overflow = True, "ellipsis"
            self._live.update(line, refresh=True)
        elif self._ticks % _PLAIN_EVERY_TICKS == 0:
            self._console.print(line, soft_wrap=True)
        self._ticks += 1

    def _follow(self, driver: Driver) -> None:
        self._driver = driver
        self._ticks = 0
        self._ttft = Histogram()
        self._ended = dict.fromkeys(self._ended, 0)
        driver.on_record = self._note

    def _note(self, record: RequestRecord) -> None:
        self._ended[record.outcome.group] += 1
        if record.outcome is Outcome.COMPLETED and record.ttft_s is not None:
            self._ttft.record(record.ttft_s)

    def _line(self, stage: str, driver: Driver, planned: int) -> Text:
        ended = self._ended
        line = Text()
        line.append(f"{stage:<8}", style="bold cyan")
        line.append(f"{driver.elapsed_s:6.1f} s  sent {driver.sent}/{planned}  in flight {driver.in_flight}  ")
        line.append(f"done {ended['completed']}", style="green")
        if ended["rejected"]:
            line.append(f"  rejected {ended['rejected']}", style="yellow")
        if ended["error"]:
            line.append(f"  failed {ended['error']}", style="red")
        p50, p99 = self._ttft.percentile_s(50), self._ttft.percentile_s(99)
        if p50 is not None and p99 is not None:
            line.append(f"  TTFT P50 {p50 * 1e3:.0f}, P99 {p99 * 1e3:.0f} ms")
        return line
