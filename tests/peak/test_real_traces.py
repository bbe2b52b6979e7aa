"""Real traces through real processes: gateway, two emulated 8×H100 instances, load driver; all accounted for."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tidegate.testing.live import wait_until
from tidegate.testing.processes import Emulated, Gateway

BIG = ("--model", "m", "--step-tokens", "1024", "--max-sequences", "256")
ADMISSION = {"max_in_flight": 64, "max_prefill_tokens": 8192}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[Gateway, list[Emulated]]]:
    with contextlib.ExitStack() as stack:
        engines = [stack.enter_context(Emulated(tmp_path / f"e{n}.log", profile=BIG)) for n in (1, 2)]
        gateway = stack.enter_context(
            Gateway(tmp_path, [e.url for e in engines], {"admission": ADMISSION, "queue": {"max_wait": "300ms"}}, "m")
        )
        yield gateway, engines


def _replay(gateway: Gateway, engines: list[Emulated], folder: Path, *words: str) -> dict[str, Any]:
    """`tidegate load` as a user runs it; its figures."""
    argv = [sys.executable, "-m", "tidegate", "load", "--url", gateway.url, "--model", "m", "--json", "--warmup", "20"]
    argv += [word for engine in engines for word in ("--engine", engine.url)]
    argv += ["--out", str(folder / "runs"), *words]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


@pytest.mark.parametrize(
    ("trace", "start", "duration", "speed", "least"),
    [
        ("azure-2023-conv.csv", "20m", "60s", "10", 250),
        ("azure-2023-code.csv", "14m", "60s", "5", 500),
    ],
    ids=["conversation", "pulses of code"],
)
def test_a_trace_played_faster_is_accounted_for_to_the_last_request(
    cluster: tuple[Gateway, list[Emulated]],
    tmp_path: Path,
    shared_dir: Path,
    trace: str,
    start: str,
    duration: str,
    speed: str,
    least: int,
) -> None:
    gateway, engines = cluster
    figures = _replay(
        gateway, engines, tmp_path,
        "--trace", str(shared_dir / "traces" / trace), "--format", "azure",
        "--start", start, "--duration", duration, "--speed", speed,
    )  # fmt: skip
    account = figures["accounting"]
    assert account["balanced"] is True
    assert account["sent"] >= least
    assert account["in_flight"] == account["errors"] == account["cancelled"] == 0
    assert account["sent"] == account["completed"] + account["rejected"]
    assert account["completed"] > 0
    assert not any("lost, repeated or foreign text" in note for note in figures["notes"])
    for engine in engines:
        engine.wait_at_rest()
    wait_until("the gateway at rest", lambda: gateway.metric("tidegate_requests_in_flight") == 0)
    total = gateway.metric("tidegate_requests_total")
    assert total is not None
    assert total >= account["sent"], "the gateway counted every request the client sent"
