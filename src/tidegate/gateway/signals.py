"""SIGTERM and SIGINT from before anything is loaded: the first asks for a drain, the second ends at once.

Imports nothing heavy, so that a command can install it as its first act; a signal that comes while the rest loads is
not lost.
"""

from __future__ import annotations

import signal
from types import FrameType
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

NUMBERS: Final = (signal.SIGTERM, signal.SIGINT)


class Flag(Protocol):
    """An `asyncio.Event`, as far as this needs it."""

    def set(self) -> None: ...


class StopSignals:
    """Counts stop signals and raises two flags, once a loop has taken over."""

    def __init__(self) -> None:
        self.count = 0
        self._flags: list[Flag] = []
        for number in NUMBERS:
            signal.signal(number, self._early)
        # A request to reload that comes before anything is loaded has nothing to do, and must not end the process.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def _early(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self.count > 1:
            raise KeyboardInterrupt

    def attach(self, loop: AbstractEventLoop, stop: Flag, hurry: Flag) -> None:
        """From here on `loop` delivers them; one that came before counts."""
        self._flags = [stop, hurry]
        for number in NUMBERS:
            loop.add_signal_handler(number, self._arrived)
        if self.count:
            stop.set()

    def _arrived(self) -> None:
        self.count += 1
        for flag in self._flags[: self.count]:
            flag.set()
