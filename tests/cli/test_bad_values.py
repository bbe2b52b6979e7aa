"""Values that cannot be meant: one sentence that names the option, before anything long is begun."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.cli import run
from tidegate.errors import ExitCode
from tidegate.testing.processes import Emulated

CLUSTER = (
    "pools: [{model: m, instances: [{url: 'http://127.0.0.1:1'}]}]\n"
    "traffic: {phases: [{name: a, duration: 1s, rate: 5}]}\n"
)
RATE = ("--rate", "5", "--duration", "2s")


def _said(capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: ExitCode) -> str:
    assert run(list(words)) == code
    error = " ".join(capsys.readouterr().err.split())
    assert "Traceback" not in error
    assert "bug in Tidegate" not in error
    return error


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("-c", "c.yaml", "--duration", "5s"), "--duration has no use without --rate or --trace"),
        (("-c", "c.yaml", "--pulse", "5@0s+1s"), "--pulse has no use without --rate"),
        (("-c", "c.yaml", "--arrivals", "constant"), "--arrivals has no use without --rate"),
        (("-c", "c.yaml", "--speed", "10"), "--speed has no use without --trace"),
        ((*RATE, "--start", "5s"), "--start has no use without --trace"),
        ((*RATE, "--burstiness", "2"), "--burstiness has no use without --arrivals gamma"),
        (("--trace", "t.csv", "--pulse", "5@0s+1s"), "--pulse has no use without --rate"),
        ((*RATE, "--pulse", "x@0s+1s"), "the factor 'x' is not a number"),
        ((*RATE, "--pulse", "-2@0s+1s"), "the factor -2 is below 0"),
        ((*RATE, "--pulse", "nan@0s+1s"), "the factor 'nan' is not a number"),
    ],
)
def test_an_option_of_load_that_would_change_nothing_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text(CLUSTER)
    argv = ("load", "--url", "http://127.0.0.1:1", "--model", "m", *words)
    assert says in _said(capsys, argv, ExitCode.BAD_INPUT)


@pytest.mark.parametrize("option", ["--timeout", "--duration"])
def test_no_time_at_all_is_a_usage_error(capsys: pytest.CaptureFixture[str], option: str) -> None:
    argv = ("load", "--url", "http://127.0.0.1:1", "--model", "m", *RATE, option, "0s")
    assert "'0s' is no time at all" in _said(capsys, argv, ExitCode.USAGE)


@pytest.mark.parametrize("command", ["demo", "load"])
def test_a_folder_that_cannot_be_written_is_known_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    (tmp_path / "file").write_text("")
    words: tuple[str, ...] = (command, "--out", str(tmp_path / "file"))
    if command == "load":
        words += ("--url", "http://127.0.0.1:1", "--model", "m", *RATE)
    said = _said(capsys, words, ExitCode.UNAVAILABLE)
    assert f"runs cannot be kept in {tmp_path / 'file'}" in said
    assert "--out" in said


@pytest.mark.parametrize(("option", "value"), [("--start", "5s"), ("--duration", "5s"), ("--speed", "10")])
def test_simulate_takes_the_trace_options_only_with_a_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, value: str
) -> None:
    (tmp_path / "c.yaml").write_text(CLUSTER)
    argv = ("simulate", "-c", str(tmp_path / "c.yaml"), option, value)
    assert f"{option} has no use without --trace" in _said(capsys, argv, ExitCode.BAD_INPUT)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--weights", "int3"), "--weights int3 is none of bf16, fp8, mxfp4"),
        (("--kv-cache", "x"), "--kv-cache x is none of bf16, fp8"),
        (("--memory-fraction", "1.5"), "--memory-fraction 1.5 must be at most 1.0"),
        (("--step-tokens", "0"), "--step-tokens 0 must be at least 1"),
    ],
)
def test_emulate_names_the_option_that_is_wrong(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], says: str
) -> None:
    assert says in _said(capsys, ("emulate", "--port", "0", *words), ExitCode.BAD_INPUT)


def test_a_run_of_which_nothing_was_completed_did_not_do_its_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Emulated(tmp_path / "engine.log") as engine:
        url = f"http://127.0.0.1:{engine.port}"
        argv = ("load", "--url", url, "--model", "nope", *RATE, "--warmup", "0", "--out", str(tmp_path / "runs"))
        said = _said(capsys, argv, ExitCode.FAILED)
    assert "not one of" in said
    assert "unknown_model" in said or "engine_refused" in said
    assert len(list((tmp_path / "runs").iterdir())) == 1
