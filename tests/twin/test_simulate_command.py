"""`tidegate simulate` as a person runs it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tidegate.cli import run
from tidegate.errors import ExitCode
from tidegate.traffic.figures import RunFigures
from tidegate.traffic.store import read_run

CONFIG = """
pools:
  - model: llama
    instances: [{url: http://127.0.0.1:8001}, {url: http://127.0.0.1:8002}]
traffic:
  phases: [{name: steady, duration: 5s, rate: 10}]
"""


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "tidegate.yaml"
    path.write_text(CONFIG)
    return str(path)


def test_a_table_on_stdout_and_the_run_kept(config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", "-c", config, "--out", str(tmp_path / "runs"), "--label", "try"]) == ExitCode.OK
    told = capsys.readouterr()
    for word in ("goodput", "TTFT", "ITL", "preemptions", "MFU", "simulated"):
        assert word in told.out
    (folder,) = (tmp_path / "runs").iterdir()
    assert str(folder) in told.err
    kept = read_run(folder)
    assert (kept.kind, kept.label, kept.emulated) == ("twin", "try", True)


def test_json_is_all_that_goes_to_stdout(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", "-c", config, "--no-admission", "--json"]) == ExitCode.OK
    figures = msgspec.json.decode(capsys.readouterr().out, type=RunFigures)
    assert figures.total.completed == figures.total.sent > 0


def test_a_trace_is_played_instead_of_the_phases(
    config: str, shared_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = str(shared_dir / "traces" / "azure-2023-code.csv")
    assert run(["simulate", "-c", config, "--trace", trace, "--duration", "2m", "--speed", "4", "--json"]) == 0
    figures = msgspec.json.decode(capsys.readouterr().out, type=RunFigures)
    assert list(figures.phases) == ["trace"]
    assert figures.total.duration_s == pytest.approx(30)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--trace", "prompts.txt"], "prompts.txt: neither an Azure .csv nor a Mooncake .jsonl"),
        (["--trace", "none.csv"], "none.csv: cannot be read"),
        (["--trace", "none.csv", "--duration", "10"], "has no unit"),
        (["--trace", "none.csv", "--duration", "0s"], "plays nothing"),
        (["-c", "nowhere.yaml"], "nowhere.yaml"),
    ],
)
def test_bad_input_is_one_clear_sentence(
    config: str, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["simulate", "-c", config, *arguments]) == ExitCode.BAD_INPUT
    told = capsys.readouterr()
    assert words in told.err
    assert told.out == ""
    assert "Traceback" not in told.err


def test_one_value_is_replaced_and_checked_like_the_file(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    def itl_p99_s(*more: str) -> float:
        assert run(["simulate", "-c", config, "--json", *more]) == ExitCode.OK
        figures = msgspec.json.decode(capsys.readouterr().out, type=RunFigures)
        assert figures.total.itl.p99_s is not None
        return figures.total.itl.p99_s

    assert itl_p99_s("--set", "engine.step_tokens=512", "--set", "engine.max_sequences=64") < 0.5 * itl_p99_s()
    assert itl_p99_s("--set", "pools.0.engine.step_tokens=8192") == itl_p99_s()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "engine.step_tokens"], "is no assignment"),
        (["--set", "engine.step_tokns=5"], "did you mean 'step_tokens'"),
        (["--set", "engine.step_tokens=many"], "step_tokens"),
        (["--set", "slo.ttft.more=1s"], "slo.ttft: expected a duration like 800ms"),
        (["--set", "traffic.phases.7.rate=1"], "there is nothing called"),
        (["--fault", "die@1s"], "is no fault"),
        (["--fault", "die@1s:9"], "hits instance 9, and there are 2"),
    ],
)
def test_a_bad_what_if_is_one_clear_sentence(
    config: str, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["simulate", "-c", config, *arguments]) == ExitCode.BAD_INPUT
    told = capsys.readouterr()
    assert words in told.err
    assert "Traceback" not in told.err


def test_a_death_shows_in_the_figures(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", "-c", config, "--json", "--fault", "die@2s:0", "--gateways", "2"]) == ExitCode.OK
    figures = msgspec.json.decode(capsys.readouterr().out, type=RunFigures)
    assert figures.total.outcomes["stream_broken"] > 0
    assert figures.exits_per_instance_hour is not None
    assert figures.exits_per_instance_hour > 0


def test_seeds_give_intervals_and_settings_a_table(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", "-c", config, "--seeds", "3", "--sensitivity", "--jobs", "2"]) == ExitCode.OK
    told = capsys.readouterr().out
    assert "over 3 seeds" in told
    assert " ± " in told
    for setting in ("engine.memory_fraction", "engine.step_tokens 4096", "admission.prefill_ahead", "queue.max_wait"):
        assert setting in told


def test_ways_out_are_simulated_before_they_are_named(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--set", "engine.step_tokens=1024", "--set", "engine.max_sequences=128"]
    small += ["--set", "traffic.phases.0.rate=25", "--set", "traffic.phases.0.duration=10s"]
    assert run(["simulate", "-c", config, *small, "--explain"]) == ExitCode.OK
    told = capsys.readouterr().out
    assert "why: " in told
    kept = told.rsplit("each of these alone keeps the SLO: ", 1)[1]
    assert "instances" in kept
    assert "steps of 2048 tokens" not in kept
    easy = ["--set", "engine.step_tokens=512", "--set", "engine.max_sequences=64", "--set", "slo.ttft=20s"]
    assert run(["simulate", "-c", config, *easy, "--set", "slo.itl=1s", "--explain"]) == ExitCode.OK
    assert "the SLO is kept" in capsys.readouterr().out
