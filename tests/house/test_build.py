"""What `make` and the build promise: a list of targets, plain refusals, compiled modules where they were asked for."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tidegate.build_info import compiled_modules

OLD_PYTHON = """#!/bin/sh
exec {python} -c "import sys; sys.version_info = (3, 9, 2); exec(sys.argv[1])" "$2"
"""
NO_HEADERS = """#!/bin/sh
exec {python} -c "import sys, sysconfig; sysconfig.get_path = lambda *_: '/nonexistent'; exec(sys.argv[1])" "$2"
"""


def make(repo_root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs make without this process's own make or environment showing through."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    command = ["make", "--no-print-directory", "-C", str(repo_root), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)


def test_make_alone_lists_every_target(repo_root: Path) -> None:
    done = make(repo_root)
    assert done.returncode == 0
    listed = {line.split()[0] for line in done.stdout.splitlines()[1:]}
    assert listed == {
        "help", "env", "deps", "test", "check", "demo", "bench", "compile", "test-compiled", "clean",
    }  # fmt: skip


@pytest.mark.parametrize(("script", "told"), [(OLD_PYTHON, "needs 3.11"), (NO_HEADERS, "python3-dev")])
def test_an_unfit_python_is_refused_in_one_sentence(repo_root: Path, tmp_path: Path, script: str, told: str) -> None:
    python = tmp_path / "python"
    python.write_text(script.format(python=sys.executable))
    python.chmod(0o755)
    done = make(repo_root, "env", f"VENV={tmp_path / 'venv'}", f"PYTHON={python}")
    said = [line for line in done.stderr.splitlines() if not line.startswith("make")]
    assert done.returncode != 0
    assert len(said) == 1
    assert told in said[0]
    assert not (tmp_path / "venv").exists()


def test_a_missing_python_is_refused_in_one_sentence(repo_root: Path, tmp_path: Path) -> None:
    done = make(repo_root, "env", f"VENV={tmp_path / 'venv'}", "PYTHON=python-that-is-not-there")
    said = [line for line in done.stderr.splitlines() if not line.startswith("make")]
    assert said == [
        "error: python-that-is-not-there is not installed; Tidegate needs Python 3.11 or newer (make PYTHON=...)."
    ]


def test_an_unknown_demo_engine_is_refused(repo_root: Path, tmp_path: Path) -> None:
    done = make(repo_root, "demo", f"VENV={tmp_path / 'venv'}", "ENGINE=steam")
    assert done.returncode != 0
    assert "ENGINE=steam is unknown" in done.stderr


def test_modules_are_compiled_exactly_when_asked(repo_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`make test-compiled` must not pass on plain Python, nor plain `make test` on stray shared objects."""
    monkeypatch.chdir(repo_root)
    files = runpy.run_path("setup.py", run_name="setup")["compilable"]()
    modules = sorted(Path(file).relative_to("src").with_suffix("").as_posix().replace("/", ".") for file in files)
    expected = modules if os.environ.get("TIDEGATE_EXPECT_COMPILED") else []
    assert list(compiled_modules()) == expected
    assert {"tidegate.policy.gate", "tidegate.wire.sse", "tidegate.twin.instance"} <= set(modules)


def test_no_shared_object_lies_beside_the_sources(repo_root: Path) -> None:
    assert not list((repo_root / "src").rglob("*.so"))
