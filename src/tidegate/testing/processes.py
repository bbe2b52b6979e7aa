"""Tidegate's own processes under test: emulated engines, a gateway in front of them, whatever else is run.

Real processes on free loopback ports, ready when the block is entered and gone, with their whole group, when it is
left. `stdout` and `stderr` go to one log.
"""

from __future__ import annotations

import http.client
import json
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

from tidegate.node.process import Child, answers, signal_group
from tidegate.testing.live import HOST, PATIENCE_S, free_port, wait_until
from tidegate.wire.prometheus import parse

MODEL: Final = "tide-8b"
SMALL: Final = (
    "--model", MODEL, "--shape", "llama-3.1-8b", "--gpus", "1", "--weights", "bf16", "--kv-cache", "bf16",
)  # fmt: skip
"""Options of an emulated engine whose steps take about 6 ms, for tests that wait for it."""


class Tidegate(Child):
    """A `tidegate` command as a process."""

    def __init__(self, arguments: Sequence[str], log: Path, name: str = "") -> None:
        super().__init__(name or f"tidegate {arguments[0]}", [sys.executable, "-m", "tidegate", *arguments], log)

    def signal(self, number: signal.Signals) -> None:
        """Sends one signal to the process (and not to its children)."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL to the whole group, as a crash or the kernel's OOM killer would."""
        signal_group(self.pid, signal.SIGKILL)
        self._process.wait()

    def wait_exit(self, patience_s: float = PATIENCE_S) -> int:
        """The exit code, once it has ended by itself; AssertionError when it does not."""
        wait_until(f"{self.name} ended", lambda: self.exit_code is not None, patience_s)
        code = self.exit_code
        assert code is not None
        return code

    def output(self) -> str:
        """What it has printed."""
        return self.log.read_text()


class Server(Tidegate):
    """A `tidegate` command that serves HTTP on `port`."""

    def __init__(self, arguments: Sequence[str], log: Path, port: int, health_port: int = 0, name: str = "") -> None:
        self.port = port
        self.health_port = health_port or port
        self.url = f"http://{HOST}:{port}"
        super().__init__(arguments, log, name)

    def wait_serving(self) -> Self:
        """Returns once its health is 200."""
        self.wait_ready(lambda: answers(HOST, self.health_port), PATIENCE_S)
        return self

    def __enter__(self) -> Self:
        try:
            return self.wait_serving()
        except BaseException:
            self.stop()
            raise

    def get(self, path: str, port: int = 0) -> tuple[int, bytes]:
        """Status and body of a GET."""
        return request("GET", port or self.port, path)

    def post(self, path: str, body: object, headers: Mapping[str, str] | None = None) -> tuple[int, bytes]:
        """Status and body of a POST of JSON."""
        return request("POST", self.port, path, json.dumps(body).encode(), headers)

    def chat(self, **fields: Any) -> dict[str, Any]:
        """A whole chat completion; `fields` go into the body. AssertionError unless it is answered 200."""
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, **fields}
        status, answer = self.post("/v1/chat/completions", body)
        assert status == 200, answer
        decoded: dict[str, Any] = json.loads(answer)
        return decoded

    def metric(self, name: str) -> float | None:
        """One of its metrics, added up over labels."""
        status, page = self.get("/metrics", self.health_port)
        assert status == 200
        return parse(page.decode(), frozenset([name])).sum(name)


class Emulated(Server):
    """An emulated engine; `options` replace `SMALL`."""

    def __init__(self, log: Path, *options: str, port: int = 0, profile: Sequence[str] = SMALL) -> None:
        port = port or free_port()
        super().__init__(["emulate", "--port", str(port), *profile, *options], log, port, name="emulated engine")

    def running(self) -> float:
        """Requests in its batch or waiting for it, by its own metrics."""
        return (self.metric("vllm:num_requests_running") or 0) + (self.metric("vllm:num_requests_waiting") or 0)

    def wait_at_rest(self, patience_s: float = PATIENCE_S) -> float:
        """Waits until it works on nothing; returns how long that took, in seconds."""
        began = time.monotonic()
        wait_until("the engine at rest", lambda: self.running() == 0, patience_s)
        return time.monotonic() - began


class Gateway(Server):
    """A gateway in front of `engines`, all in one pool. `extra` is merged into the `gateway` part of its file.

    Without a living engine its health stays 503; with `healthy` false the block is entered once it listens.
    """

    def __init__(
        self,
        directory: Path,
        engines: Sequence[str],
        extra: Mapping[str, Any] | None = None,
        model: str = MODEL,
        tenants: Sequence[Mapping[str, Any]] = (),
        healthy: bool = True,
        options: Sequence[str] = (),
    ) -> None:
        port, admin = free_port(), free_port()
        document = {
            "pools": [{"model": model, "instances": [{"url": url} for url in engines]}],
            "gateway": {"listen": f"{HOST}:{port}", "admin": f"{HOST}:{admin}", **(extra or {})},
            "tenants": list(tenants),
        }
        self.config = directory / f"gateway-{port}.yaml"
        # JSON is YAML.
        self.config.write_text(json.dumps(document))
        log = directory / f"gateway-{port}.log"
        self._healthy = healthy
        super().__init__(["gateway", "-c", str(self.config), *options], log, port, health_port=admin, name="gateway")

    def wait_serving(self) -> Self:
        """Returns once its health is 200, or once it listens."""
        if self._healthy:
            return super().wait_serving()
        self.wait_ready(lambda: "ready: " in self.output(), PATIENCE_S)
        return self


def request(
    method: str,
    port: int,
    path: str,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = PATIENCE_S,
) -> tuple[int, bytes]:
    """One request on its own connection: status and whole body."""
    connection = http.client.HTTPConnection(HOST, port, timeout=timeout_s)
    try:
        given = {"content-type": "application/json"} if body is not None else {}
        connection.request(method, path, body, {**given, **(headers or {})})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()
