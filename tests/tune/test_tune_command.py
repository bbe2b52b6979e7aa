"""`tidegate tune` as a user meets it: files written, exit codes, refusals in one sentence."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tidegate.node.process import signal_group
from tidegate.spec import load_spec
from tidegate.testing.processes import Tidegate
from tidegate.tune.study import JUDGED

CLUSTER = """\
pools:
  - model: llama
    instances: [{url: "http://10.0.0.1:8000"}, {url: "http://10.0.0.2:8000"}]
traffic: {warmup_requests: 0, phases: [{name: steady, duration: 8s, rate: 6}, {name: pulse, duration: 6s, rate: 20}]}
"""


def tune(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tidegate", "tune", "--jobs", "1", "--trials", "6", "--seeds", "1", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=110, cwd=folder, check=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tidegate.yaml").write_text(CLUSTER)
    return tmp_path


def test_a_tune_writes_a_cluster_that_can_be_frozen(folder: Path) -> None:
    done = tune(folder, "--json", "--study", "tune.study")
    assert done.returncode == 0, done.stderr
    (made,) = (folder / "runs").iterdir()
    report = json.loads(done.stdout)
    assert json.loads((made / "tune.json").read_text()) == report
    winner = report["winner"]
    assert winner["results"]["itl_p99"] <= 0.05
    assert winner["results"]["ttft_p99"] <= 0.8
    tuned = load_spec(made / "tidegate.yaml")
    assert tuned.pools[0].engine.step_tokens == winner["setting"]["step_tokens"]
    assert tuned.gateway.admission.long_share == winner["setting"]["long_share"]
    assert all(one["why"] for one in report["neighbours"])
    page = (made / "tune.html").read_text()
    assert "Pareto front" in page
    assert "why it is not the winner" in page
    assert "src=" not in page.split("<script")[0], "the page opens offline"
    again = tune(folder, "--study", "tune.study", "--no-html")
    assert again.returncode == 0
    assert "resumed: " in again.stderr
    assert "winner: goodput" in again.stdout
    assert "before" in again.stdout


def test_an_infeasible_slo_is_explained_without_a_search(folder: Path) -> None:
    (folder / "tidegate.yaml").write_text(CLUSTER + "slo: {itl: 8ms}\n")
    done = tune(folder, "--no-html")
    assert done.returncode == 1
    assert "no step is short enough for an ITL of 8.00 ms" in done.stdout
    assert "0 of " in done.stdout


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--budget", "0s"], "--budget 0s is no time at all"),
        (["--budget", "30"], "--budget: '30' has no unit"),
        (["--fix", "warp"], "there is no knob 'warp'"),
        (["--knob", "step_tokens"], "names no values"),
    ],
)
def test_wrong_options_get_one_sentence(folder: Path, words: list[str], sentence: str) -> None:
    done = tune(folder, *words)
    assert done.returncode == 3
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_the_budget_ends_the_tune_without_a_false_winner(folder: Path) -> None:
    done = tune(folder, "--budget", "1ms", "--no-html")
    assert done.returncode == 1
    assert "ended: budget" in done.stdout


def test_ctrl_c_ends_it_in_one_sentence_and_loses_nothing(folder: Path) -> None:
    study = folder / "tune.study"
    words = ["tune", str(folder / "tidegate.yaml"), "--jobs", "2", "--trials", "5000", "--out", str(folder / "runs")]
    with Tidegate([*words, "--study", str(study)], folder / "log") as command:
        command.wait_ready(lambda: study.exists() and study.read_text().count(JUDGED) >= 6, 60)
        signal_group(command.pid, signal.SIGINT)
        assert command.wait_exit() == 130
    assert "Traceback" not in command.output()
    again = tune(folder, "--study", "tune.study", "--no-html")
    assert "resumed: " in again.stderr
