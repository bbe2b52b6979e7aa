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
