"""The console of a gateway process."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
from pathlib import Path

from tidegate.errors import ExitCode
from tidegate.testing.live import HOST, wait_until
from tidegate.testing.processes import Emulated, Gateway


def state(gateway: Gateway) -> dict[str, object]:
    status, body = gateway.get("/console/state", gateway.health_port)
    assert status == 200
    found: dict[str, object] = json.loads(body)
    return found


def test_traffic_through_the_gateway_is_on_the_console(emulated: Emulated, tmp_path: Path) -> None:
    with Gateway(tmp_path, [emulated.url]) as gateway:
        gateway.chat()
        wait_until("it is counted", lambda: state(gateway)["outcomes"] == {"completed": 1})
        seen = state(gateway)
        assert seen["status"] == "ok"
        wait_until("the engine's metrics are known", lambda: state(gateway)["rows"][0][1] is not None)  # type: ignore[index]
        assert [event["kind"] for event in seen["events"]] == ["instance_moved", "served"]  # type: ignore[attr-defined]
        assert b"/console/" not in gateway.get("/metrics", gateway.health_port)[1]


def test_an_open_console_does_not_hold_a_drain_up(emulated: Emulated, tmp_path: Path) -> None:
    with Gateway(tmp_path, [emulated.url]) as gateway:
        connection = http.client.HTTPConnection(HOST, gateway.health_port, timeout=30)
        connection.request("GET", "/console/stream")
        answer = connection.getresponse()
        assert answer.readline() == b"event: whole\n"
        gateway.signal(signal.SIGTERM)
        assert gateway.wait_exit() == ExitCode.OK
        assert "Traceback" not in gateway.output()
        assert answer.read(), "what was sent is there, and then the end"
        connection.close()


def test_without_a_console_nothing_of_it_is_there(emulated: Emulated, tmp_path: Path) -> None:
    with Gateway(tmp_path, [emulated.url], options=["--no-console"]) as gateway:
        assert gateway.get("/console/", gateway.health_port)[0] == 404
        assert gateway.get("/health", gateway.health_port)[0] == 200


def test_the_gateway_loads_the_console_only_when_it_runs_one() -> None:
    code = "import sys, tidegate.gateway.process, tidegate.cli.gateway; print('tidegate.console' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"
