"""Real processes under test: ports, waiting for a state, and llama.cpp as the engine nobody here wrote."""

from __future__ import annotations

import socket
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tidegate.engines.llamacpp_server import command
from tidegate.node.process import Child, answers

HOST: Final = "127.0.0.1"
PATIENCE_S: Final = 30.0
POLL_S: Final = 0.02


def free_port() -> int:
    """A loopback port nobody holds at this moment."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def wait_until(what: str, condition: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
    """Polls until `condition` holds; AssertionError names `what` did not come true."""
    deadline = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {patience_s:.0f} s")
        time.sleep(POLL_S)


class LlamaCpp(Child):
    """A llama.cpp server process. `slots` requests run at once, each with `context_tokens` of room."""

    def __init__(self, log: Path, slots: int = 4, context_tokens: int = 8192) -> None:
        self.port = free_port()
        self.url = f"http://{HOST}:{self.port}"
        self.slots = slots
        self.context_tokens = context_tokens
        super().__init__("llama.cpp", command(self.port, slots=slots, context_tokens=context_tokens), log)

    def wait_serving(self) -> None:
        """Returns once the model is loaded."""
        self.wait_ready(lambda: answers(HOST, self.port), PATIENCE_S)

    def metric(self, name: str) -> float:
        """One of the engine's own figures, such as `requests_processing`."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return float(next(line.split()[1] for line in lines if line.startswith(f"llamacpp:{name} ")))

    def busy(self) -> bool:
        """Whether the engine itself says that it works on anything."""
        return self.metric("requests_processing") + self.metric("requests_deferred") > 0
