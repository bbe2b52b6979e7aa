"""The command line as a user meets it: real processes, exit codes, one sentence on stderr."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tidegate.cli import COMMANDS, reference

REPO = Path(__file__).resolve().parents[2]


def _tidegate(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tidegate", *words], capture_output=True, text=True, timeout=60, cwd=cwd, check=False
    )


def test_the_command_list_names_every_command() -> None:
    done = _tidegate("--help")
    assert done.returncode == 0
    for name in COMMANDS:
        assert f" {name} " in done.stdout


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_explains_itself(name: str) -> None:
    done = _tidegate(name, "--help")
    assert done.returncode == 0
    assert f"tidegate {name}" in done.stdout


def test_a_mistyped_command_is_a_usage_error() -> None:
    done = _tidegate("gatway")
    assert done.returncode == 2
    assert "gatway" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_mistyped_option_is_a_usage_error() -> None:
    done = _tidegate("check", "--jsn")
    assert done.returncode == 2
    assert "--jsn" in done.stderr


@pytest.mark.parametrize(
    "words", [("check", "no-such.yaml"), ("gateway", "-c", "no-such.yaml"), ("report", "no-such-run")]
)
def test_a_missing_file_is_one_sentence_and_exit_code_3(words: tuple[str, ...], tmp_path: Path) -> None:
    done = _tidegate(*words, cwd=tmp_path)
    assert done.returncode == 3, done.stderr
    assert "no-such" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_reader_that_stops_early_is_no_error(tmp_path: Path) -> None:
    assert _tidegate("init", "t.yaml", cwd=tmp_path).returncode == 0
    script = f"{sys.executable} -m tidegate check t.yaml --json | head -c 1"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, cwd=tmp_path, check=False)
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


@pytest.mark.parametrize("words", ["--help", "check t.yaml --json"])
def test_a_full_disk_behind_stdout_is_one_sentence(tmp_path: Path, words: str) -> None:
    assert _tidegate("init", "t.yaml", cwd=tmp_path).returncode == 0
    script = f"{sys.executable} -m tidegate {words} > /dev/full"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, cwd=tmp_path, check=False)
    assert (done.returncode, done.stderr) == (4, "error: the output cannot be written: No space left on device\n")


def test_a_terminal_that_is_not_utf_8_gets_its_answer(tmp_path: Path) -> None:
    assert _tidegate("init", "t.yaml", cwd=tmp_path).returncode == 0
    argv = [sys.executable, "-m", "tidegate", "check", "t.yaml"]
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(argv, capture_output=True, timeout=60, cwd=tmp_path, env=ascii_only, check=False)
    assert done.returncode == 0, done.stderr
    assert "8 × h100_sxm" in done.stdout.decode()


def test_ctrl_c_is_answered_in_words(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "tidegate", "demo"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as demo:
        assert demo.stderr is not None
        assert "1/4" in demo.stderr.readline()
        demo.send_signal(signal.SIGINT)
        _, said = demo.communicate(timeout=60)
    assert demo.returncode == 130
    assert said.endswith("error: interrupted\n"), said


def test_ctrl_c_during_the_first_imports_is_answered_in_words() -> None:
    code = (
        "import builtins, os, signal, sys, tidegate.cli\n"
        "real = builtins.__import__\n"
        "def slow(name, *rest, **named):\n"
        "    if name == 'typer':\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "    return real(name, *rest, **named)\n"
        "builtins.__import__ = slow\n"
        "assert 'typer' not in sys.modules\n"
        "sys.exit(tidegate.cli.run(['--version']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (130, "error: interrupted\n")


def test_the_gateway_does_not_pay_for_the_other_commands() -> None:
    code = (
        "import sys, tidegate.cli.program; tidegate.cli.program.program('gateway')\n"
        "heavy = ('plotly', 'tidegate.load', 'tidegate.twin', 'tidegate.tune', 'rich.live')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_the_reference_page_is_what_the_commands_say() -> None:
    page = (REPO / "docs/reference/commands.md").read_text(encoding="utf-8")
    assert page == reference.page(), "run: python -m tidegate.cli.reference > docs/reference/commands.md"
