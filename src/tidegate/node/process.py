"""A child process with its own group: started, known ready, ended whole.

Every child leads its own session, so that ending it ends its tree (an engine's workers outlive a killed parent
otherwise, vllm-project/vllm#55510). On Linux the kernel also ends it when this process dies, however it dies.
"""

from __future__ import annotations

import ctypes
import http.client
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tidegate.errors import UnavailableError

POLL_S: Final = 0.05
LOG_TAIL_BYTES: Final = 2000
_PR_SET_PDEATHSIG: Final = 1


def _in_child(niceness: int) -> Callable[[], None]:
    """What runs in the child before exec: asks the kernel for SIGTERM when the parent goes, and yields priority."""

    def prepare() -> None:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        os.nice(niceness)

    return prepare


class Child:
    """One process. Use as a context manager: it is gone when the block is left.

    `log` receives stdout and stderr; `niceness` is added to the parent's, so that a measuring parent is scheduled
    first. Errors: `UnavailableError` when it cannot be started, ends before it is ready, or is not ready in time; the
    message quotes the end of its log.
    """

    def __init__(self, name: str, argv: Sequence[str], log: Path, *, niceness: int = 0) -> None:
        self.name = name
        self.log = log
        try:
            with log.open("ab") as sink:
                self._process = subprocess.Popen(
                    list(argv),
                    stdin=subprocess.DEVNULL,
                    stdout=sink,
                    stderr=sink,
                    start_new_session=True,
                    preexec_fn=_in_child(niceness),  # noqa: PLW1509 - touches no lock, so threads cannot hang it
                )
        except OSError as exc:
            raise UnavailableError(f"{name}: cannot start {argv[0]}: {exc.strerror}") from exc

    @property
    def pid(self) -> int:
        """Process id, which is also its group's id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Exit code (negative: signal), None while it runs."""
        return self._process.poll()

    def wait_ready(self, ready: Callable[[], bool], patience_s: float) -> None:
        """Polls `ready` until it is true."""
        deadline = time.monotonic() + patience_s
        while not ready():
            if self.exit_code is not None:
                raise UnavailableError(
                    f"{self.name} ended with code {self.exit_code} before it was ready{self._tail()}"
                )
            if time.monotonic() > deadline:
                raise UnavailableError(f"{self.name} was not ready within {patience_s:.0f} s{self._tail()}")
            time.sleep(POLL_S)

    def stop(self, patience_s: float = 20.0) -> int:
        """SIGTERM, then after `patience_s` SIGKILL to the whole group. Returns the exit code; idempotent."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(patience_s)
            except subprocess.TimeoutExpired:
                signal_group(self.pid, signal.SIGKILL)
        code = self._process.wait()
        signal_group(self.pid, signal.SIGKILL)
        return code

    def _tail(self) -> str:
        lines = self.log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace").strip().splitlines()
        return f"; its log ({self.log}) ends: {lines[-1]}" if lines else f"; its log ({self.log}) is empty"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def signal_group(group: int, number: signal.Signals) -> None:
    """Sends a signal to a process group; one that is gone already is fine."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return


def answers(host: str, port: int, path: str = "/health", timeout_s: float = 2.0) -> bool:
    """Whether GET `path` there is answered 200."""
    connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
