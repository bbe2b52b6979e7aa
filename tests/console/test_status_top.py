"""`tidegate status` and `tidegate top` before a staged gateway, and in a real terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidegate.cli import run
from tidegate.cli.top import EVENTS, curve
from tidegate.errors import ExitCode, Outcome
from tidegate.testing.live import HOST, PATIENCE_S, free_port
from tidegate.testing.stage import Served


def admin(served: Served) -> list[str]:
    return ["--admin", f"{HOST}:{served.port}"]


def test_a_healthy_cluster_is_said_in_a_few_lines(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    served.do(served.ready, served.pass_second, lambda: served.serve(10, ttft_s=0.2), served.pass_second)
    assert run(["status", *admin(served)]) == ExitCode.OK
    said = capsys.readouterr().out
    assert "every model is served" in said
    assert "4 of 4 instances ready" in said
    assert "requests/s 10" in said


def test_trouble_is_named_and_is_the_exit_code(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    served.do(served.ready, *(lambda n=n: served.gateway.probed(served.instances[n], False) for n in (0, 1)))
    served.beat()
    assert run(["status", *admin(served)]) == ExitCode.FAILED
    said = capsys.readouterr().out
    assert "no instance of it is ready" in said
    assert "tide-1 (tide, http://10.0.0.1:1): ejected" in said


def test_json_names_every_figure_and_leaves_unknown_null(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    served.do(lambda: served.ready(lambda number: None if number else 0.25), served.pass_second)
    assert run(["status", "--json", *admin(served)]) == ExitCode.OK
    told = json.loads(capsys.readouterr().out)
    first, second, *_ = told["instances"]
    assert (first["name"], first["state"], first["kv_used"], first["running"]) == ("tide-1", "ready", 0.25, 4.0)
    assert second["kv_used"] is None
    assert told["now"]["ttft_p99_s"] is None
    assert (told["status"], told["slo"]["ttft_s"]) == ("ok", 0.8)


def test_the_document_says_where_to_ask(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    served.do(served.ready, served.pass_second)
    (tmp_path / "tidegate.yaml").write_text(
        f"pools:\n- model: m\n  instances:\n  - url: http://127.0.0.1:1\ngateway:\n  admin: {HOST}:{served.port}\n"
    )
    monkeypatch.chdir(tmp_path)
    assert run(["status"]) == ExitCode.OK
    assert "4 of 4" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["status", "top"])
def test_nobody_there_is_one_sentence(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([name, "--admin", f"{HOST}:{free_port()}"]) == ExitCode.UNAVAILABLE
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert "no gateway answers at" in said[0]


def test_top_puts_trouble_first_and_fits_the_screen(capsys: pytest.CaptureFixture[str]) -> None:
    with Served(1000) as served:
        served.do(lambda: served.ready(lambda number: number / 1000), served.pass_second)
        served.do(lambda: served.gateway.probed(served.instances[700], False), served.pass_second)
        served.do(lambda: served.serve(5, outcome=Outcome.OVERLOADED), served.pass_second)
        assert run(["top", "--once", *admin(served)]) == ExitCode.OK
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 25
    table = next(number for number, line in enumerate(lines) if line.startswith("instance "))
    assert "ejected" in lines[table + 1]
    assert lines[table + 2].startswith("ebb-1000")
    assert any("requests are refused for want of room" in line for line in lines)


def test_curves_leave_gaps_where_nothing_is_known() -> None:
    assert curve(deque([0.0, None, 4.0, 8.0]), 1.0) == "  ▄█"
    assert curve(deque([1.0]), 8.0) == "▁"


def test_every_kind_of_event_has_words_on_page_and_terminal(repo_root: Path) -> None:
    page = (repo_root / "src/tidegate/console/static/words.js").read_text("utf-8")
    kinds = set(re.findall(r"\be_(\w+):", page))
    assert kinds == {*EVENTS, "instance_moved", "instances_moved"}


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """Both ends of a terminal of 30 lines."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    yield ours, theirs
    os.close(ours)
    os.close(theirs)


def seen(terminal: int, wanted: str) -> str:
    """Reads the screen until `wanted` was on it."""
    text = ""
    deadline = time.monotonic() + PATIENCE_S
    while wanted not in text:
        assert time.monotonic() < deadline, text
        text += os.read(terminal, 65536).decode("utf-8", "replace")
    return text


def test_top_is_live_in_a_terminal_and_q_ends_it(served: Served, terminal: tuple[int, int]) -> None:
    ours, theirs = terminal
    before = termios.tcgetattr(theirs)
    served.do(served.ready, served.pass_second)
    words = [sys.executable, "-m", "tidegate", "top", "--every", "0.2", *admin(served)]
    environment = {**os.environ, "TERM": "xterm-256color"}
    with subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        try:
            seen(ours, "tide-1")
            served.do(lambda: served.gateway.probed(served.instances[2], False))
            served.beat()
            seen(ours, "ejected, was ready")
            os.write(ours, b"q")
            seen(ours, "\x1b[?1049l")
            assert process.wait(PATIENCE_S) == ExitCode.OK
        finally:
            process.kill()
    assert termios.tcgetattr(theirs) == before
