"""The live progress line, on a real terminal and in a pipe."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

from tidegate.testing.processes import MODEL, Emulated

NARROW = 60


def _load(engine: Emulated, out: Path, errors: int) -> int:
    words = ("--rate", "20", "--duration", "2s", "--warmup", "0", "--out", str(out))
    argv = [
        sys.executable,
        "-m",
        "tidegate",
        "load",
        "--url",
        f"http://127.0.0.1:{engine.port}",
        "--model",
        MODEL,
        *words,
    ]
    env = {**os.environ, "COLUMNS": str(NARROW), "TERM": "xterm"}
    return subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=errors, timeout=60, env=env, check=False).returncode


def _drain(terminal: int) -> str:
    data = b""
    while True:
        try:
            piece = os.read(terminal, 65_536)
        except OSError:  # Linux says EIO when the other side is closed
            return data.decode()
        if not piece:
            return data.decode()
        data += piece


def test_progress_stays_on_one_line_of_a_narrow_terminal(tmp_path: Path) -> None:
    master, slave = pty.openpty()
    with Emulated(tmp_path / "engine.log") as engine:
        assert _load(engine, tmp_path / "runs", slave) == 0
    os.close(slave)
    seen = _drain(master)
    os.close(master)
    frames = [frame.rstrip() for frame in re.findall(r"load {2}[^\x1b]*", re.sub(r"\x1b\[[0-9;]*m", "", seen))]
    assert len(frames) > 3
    assert max(map(len, frames)) <= NARROW
    assert any("TTFT" in frame for frame in frames)


def test_progress_in_a_pipe_is_whole(tmp_path: Path) -> None:
    log = tmp_path / "stderr"
    with Emulated(tmp_path / "engine.log") as engine, log.open("wb") as sink:
        assert _load(engine, tmp_path / "runs", sink.fileno()) == 0
    assert re.search(r"^load .*TTFT P50 \d+, P99 \d+ ms$", log.read_text(), re.MULTILINE)
