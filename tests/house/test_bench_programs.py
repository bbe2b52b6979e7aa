"""The benchmark's own mock engine and load client: they must count right before anything is measured with them."""

from __future__ import annotations

import json
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def programs(repo_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with both, built as strictly as the compiler can."""
    directory = tmp_path_factory.mktemp("bench")
    for name in ("mock", "load"):
        source = repo_root / "bench" / "gateway" / f"{name}.c"
        flags = ["-O1", "-std=gnu11", "-Wall", "-Wextra", "-Werror"]
        subprocess.run(["cc", *flags, "-o", str(directory / name), str(source)], check=True)
    return directory


@pytest.fixture
def engine(programs: Path) -> Iterator[int]:
    """A running mock engine's port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    process = subprocess.Popen([programs / "mock", str(port)])
    try:
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
        yield port
    finally:
        process.terminate()
        process.wait(10)


def load(programs: Path, port: int, *options: str) -> dict[str, Any]:
    """One run of the load client without warm-up."""
    words = [str(programs / "load"), "--port", str(port), "--warm", "0", "--dur", "0.4", *options]
    done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=True)
    row: dict[str, Any] = json.loads(done.stdout)
    return row


def served(port: int) -> dict[str, int]:
    """What the mock engine counted."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/stats", timeout=10) as answer:
        counted: dict[str, int] = json.load(answer)
    return counted


@pytest.mark.parametrize("body_bytes", ["1024", "32768"])
def test_plain_requests_are_all_answered(programs: Path, engine: int, body_bytes: str) -> None:
    row = load(programs, engine, "--mode", "closed", "--conns", "8", "--bodysz", body_bytes)
    assert row["ok"] > 0
    assert row["bad"] == row["resets"] == 0
    assert 0 <= served(engine)["requests"] - 1 - row["ok"] <= 8, "only what was in flight at the end is uncounted"


def test_every_chunk_of_a_stream_is_seen(programs: Path, engine: int) -> None:
    row = load(programs, engine, "--mode", "closed", "--stream", "1", "--n", "7", "--conns", "4")
    assert row["ok"] > 0
    assert row["bad"] == 0
    assert 7 * row["ok"] <= row["chunks"] <= 7 * (row["ok"] + 4)
    assert row["lat_us"]["p50"] > 0


def test_paced_chunks_keep_their_pace(programs: Path, engine: int) -> None:
    row = load(programs, engine, "--mode", "paced", "--stream", "1", "--n", "1000", "--delay", "50000", "--conns", "3")
    assert row["ok"] == 0, "1000 chunks 50 ms apart take 50 s"
    assert 3 <= row["chunks"] <= 3 * 12


def test_a_refusing_server_is_counted_as_bad(programs: Path, engine: int) -> None:
    row = load(programs, engine, "--mode", "closed", "--conns", "2", "--path", "/nowhere")
    assert row["ok"] == 0
    assert row["bad"] > 0
