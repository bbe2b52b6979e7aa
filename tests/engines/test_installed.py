"""Asking an installed engine: a package of the engine's name that prints what the real one printed, or misbehaves."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tidegate.engines.installed import installed_options
from tidegate.engines.lint import LintRequest, lint_text
from tidegate.errors import UnavailableError

Install = Callable[[str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Installs a package `vllm` whose server module runs the given code."""

    def installed(code: str) -> None:
        module = tmp_path / "vllm" / "entrypoints" / "openai"
        module.mkdir(parents=True)
        for folder in (module, module.parent, module.parent.parent):
            (folder / "__init__.py").touch()
        (module / "api_server.py").write_text(code)
        info = tmp_path / "vllm-0.33.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.33.0\n")
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path[1:]]))

    return installed


def test_its_own_help_is_the_judge(install: Install, recorded: Path) -> None:
    page = recorded / "vllm/serve-help-all.vllm-0.33.0.txt"
    install(f"import sys\nassert sys.argv[1] == '--help=all'\nprint(open({str(page)!r}).read())\n")
    options = installed_options("vllm")
    assert options.version == "0.33.0"
    assert options.find("--max-num-seqs")
    report = lint_text("vllm serve m --swap-space 4", "x", LintRequest(installed=options))
    assert "the installed vllm does not take --swap-space" in " ".join(one.text for one in report.findings)


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("raise SystemExit('libcudart.so.12: cannot open shared object file')", "exit code 1: libcudart"),
        ("print('Segmentation fault, probably')", "printed no help but: Segmentation"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "exit code -11"),
        ("while True: print('x' * 65536)", "prints without end"),
    ],
)
def test_a_help_that_fails_is_one_sentence(install: Install, code: str, says: str) -> None:
    install(code)
    with pytest.raises(UnavailableError, match=says) as caught:
        installed_options("vllm")
    assert "--help-text FILE" in caught.value.hint


def test_a_help_that_hangs_is_ended_with_all_its_processes(install: Install, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    install(
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        "time.sleep(600)\n"
    )
    with pytest.raises(UnavailableError, match="did not print its help within 6 s"):
        installed_options("vllm", timeout_s=6)
    deadline_s = time.monotonic() + 10
    for pid in map(int, pids.read_text().split()):
        while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)


def test_no_engine_here_is_said() -> None:
    with pytest.raises(UnavailableError, match="No package metadata was found for sglang"):
        installed_options("sglang")
    with pytest.raises(UnavailableError, match="cannot be run"):
        installed_options("vllm", python="/nowhere/python")
