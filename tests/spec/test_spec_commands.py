"""`tidegate init` and `tidegate check` as a newcomer meets them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tidegate.cli import run
from tidegate.errors import ExitCode
from tidegate.spec import load_spec, parse_spec


@pytest.fixture(autouse=True)
def _in_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_init_then_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["init"]) == ExitCode.OK
    said = capsys.readouterr()
    assert said.out == ""
    assert "tidegate check tidegate.yaml" in said.err
    assert run(["check"]) == ExitCode.OK
    said = capsys.readouterr()
    assert said.err == ""
    assert "2 instances of 8 × h100_sxm" in said.out
    assert "http://127.0.0.1:8002" in said.out
    assert "3 phases, 2 min, about 960 requests" in said.out


def test_init_leaves_a_file_that_is_there_unless_forced(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.yaml").write_text("precious")
    assert run(["init", "mine.yaml"]) == ExitCode.BAD_INPUT
    assert Path("mine.yaml").read_text() == "precious"
    assert "--force" in capsys.readouterr().err
    assert run(["init", "mine.yaml", "--force"]) == ExitCode.OK
    load_spec("mine.yaml")


@pytest.mark.parametrize(
    ("path", "said"), [(".", "is a directory"), ("no/such/place.yaml", "there is no directory"), ("f/x.yaml", "f")]
)
@pytest.mark.parametrize("force", [[], ["--force"]])
def test_init_says_why_it_cannot_write(
    path: str, said: str, force: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("f").write_text("a file, not a directory")
    assert run(["init", path, *force]) == ExitCode.BAD_INPUT
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error


def test_check_names_every_problem_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad.yaml").write_text("pools: []\nslo: {ttft: fast}\n")
    for options in ([], ["--json"]):
        assert run(["check", "bad.yaml", *options]) == ExitCode.BAD_INPUT
        said = capsys.readouterr()
        assert said.out == ""
        assert "bad.yaml:1: pools: needs at least 1 entry" in said.err
        assert "bad.yaml:2: slo.ttft: 'fast' is not a duration" in said.err


def test_check_without_a_file_points_to_init(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check"]) == ExitCode.BAD_INPUT
    assert "tidegate init" in capsys.readouterr().err


def test_check_json_is_the_effective_spec_and_loads_again(capsys: pytest.CaptureFixture[str]) -> None:
    run(["init"])
    capsys.readouterr()
    assert run(["check", "--json"]) == ExitCode.OK
    text = capsys.readouterr().out
    assert json.loads(text)["gateway"]["queue"]["max_wait"] == 0.5
    assert parse_spec(text) == load_spec("tidegate.yaml")


def test_check_tells_tenants_trace_and_switched_off_parts(capsys: pytest.CaptureFixture[str]) -> None:
    Path("t.yaml").write_text(
        "pools: [{model: m, instances: [{url: 'http://a:1'}]}]\n"
        "gateway: {admission: {enabled: false}, queue: {max_requests: 0}}\n"
        f"tenants: [{{name: team, key_sha256: [{'a' * 64}], priority: high}}]\n"
        "traffic: {trace: {file: t.csv, format: azure, speed: 10}}\n"
    )
    assert run(["check", "t.yaml"]) == ExitCode.OK
    out = capsys.readouterr().out
    assert "1 instance of" in out
    assert "admission  off" in out
    assert "queue      none" in out
    assert "team (high)" in out
    assert "trace t.csv (azure) at 10× speed" in out


def test_check_of_a_cluster_without_traffic(capsys: pytest.CaptureFixture[str]) -> None:
    Path("t.yaml").write_text("pools: [{model: m, instances: [{url: 'http://a:1'}]}]\n")
    assert run(["check", "t.yaml"]) == ExitCode.OK
    assert "traffic    none" in capsys.readouterr().out
