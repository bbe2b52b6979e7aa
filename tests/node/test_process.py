"""Children start, are known ready, and end whole: real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tidegate.errors import UnavailableError
from tidegate.node.process import Child

SLEEPER = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"]
STUBBORN_WITH_CHILD = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
time.sleep(60)
"""


def _said(log: Path) -> str:
    return log.read_text().strip() if log.exists() else ""


def test_leaving_the_block_ends_the_process(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with Child("sleeper", SLEEPER, log) as child:
        child.wait_ready(lambda: _said(log) == "up", 20)
        pid = child.pid
    assert child.exit_code == -signal.SIGTERM
    assert not psutil.pid_exists(pid)


def test_a_process_that_ignores_sigterm_goes_with_its_whole_tree(tmp_path: Path) -> None:
    log = tmp_path / "log"
    child = Child("stubborn", [sys.executable, "-c", STUBBORN_WITH_CHILD], log)
    child.wait_ready(lambda: _said(log).isdigit(), 20)
    grandchild = psutil.Process(int(_said(log)))
    assert child.stop(patience_s=0.2) == -signal.SIGKILL
    _gone, alive = psutil.wait_procs([grandchild], timeout=10)
    assert not alive or all(p.status() == psutil.STATUS_ZOMBIE for p in alive)


def test_a_process_that_dies_before_ready_is_named_with_the_end_of_its_log(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", "import sys; print('no weights at /models'); sys.exit(7)"]
    with (
        Child("engine", argv, tmp_path / "log") as child,
        pytest.raises(UnavailableError, match=r"engine ended with code 7 .*no weights at /models"),
    ):
        child.wait_ready(lambda: False, 20)


def test_a_process_that_is_never_ready_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    with (
        Child("sleeper", SLEEPER, tmp_path / "log") as child,
        pytest.raises(UnavailableError, match="not ready within 0 s"),
    ):
        child.wait_ready(lambda: False, 0.2)


def test_a_missing_program_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"engine: cannot start /no/such/vllm: No such file"):
        Child("engine", ["/no/such/vllm"], tmp_path / "log")


def test_children_do_not_outlive_a_killed_parent(tmp_path: Path) -> None:
    log = tmp_path / "log"
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            (
                "import sys, time\nfrom pathlib import Path\nfrom tidegate.node.process import Child\n"
                f"c = Child('c', [sys.executable, '-c', 'import time; time.sleep(60)'], Path({str(log)!r}))\n"
                "print(c.pid, flush=True)\ntime.sleep(60)"
            ),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    _gone, alive = psutil.wait_procs([child], timeout=10)
    assert not alive or all(p.status() == psutil.STATUS_ZOMBIE for p in alive)


def test_what_a_tidy_process_leaves_behind_is_ended_too(tmp_path: Path) -> None:
    log = tmp_path / "log"
    leaves_a_worker = (
        "import signal, subprocess, sys, time\n"
        "worker = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
        "print(worker.pid, flush=True)\n"
        "time.sleep(60)"
    )
    child = Child("tidy", [sys.executable, "-c", leaves_a_worker], log)
    child.wait_ready(lambda: _said(log).isdigit(), 20)
    worker = psutil.Process(int(_said(log)))
    assert child.stop() == 0
    _gone, alive = psutil.wait_procs([worker], timeout=10)
    assert not alive or all(p.status() == psutil.STATUS_ZOMBIE for p in alive)
