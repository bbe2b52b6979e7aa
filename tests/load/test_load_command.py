"""`tidegate load` from the outside: what it prints, writes, refuses and returns."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidegate.cli import run as run_cli
from tidegate.cli.load_options import parse_pulse
from tidegate.errors import BadInputError, ExitCode, Outcome
from tidegate.testing.wordserver import WordServer
from tidegate.traffic.store import read_run
from tidegate.transport.server import HttpServer


@pytest.fixture
def server() -> Iterator[str]:
    """A well-behaved engine on a thread of its own, 2 ms between tokens."""
    loop = asyncio.new_event_loop()
    http = HttpServer(WordServer(gap_s=0.002))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    port = asyncio.run_coroutine_threadsafe(http.start("127.0.0.1", 0), loop).result(5)
    yield f"http://127.0.0.1:{port}"
    asyncio.run_coroutine_threadsafe(http.close(), loop).result(5)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def arguments(url: str, out: Path, *more: str) -> list[str]:
    return ["load", "--url", url, "--model", "m", "--warmup", "3", "--out", str(out), "--emulated", *more]


def test_a_run_prints_its_figures_and_writes_its_record(
    server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ("--rate", "20", "--duration", "1s", "--arrivals", "constant", "--pulse", "3@0.4s+0.2s", "--label", "x")
    assert run_cli(arguments(server, tmp_path, *more, "--json")) == ExitCode.OK
    printed = capsys.readouterr()
    figures = json.loads(printed.out)
    assert figures["accounting"]["balanced"] is True
    assert figures["total"]["outcomes"] == {"completed": 28}
    assert set(figures["phases"]) == {"steady", "pulse"}
    (folder,) = tmp_path.iterdir()
    assert str(folder) in printed.err
    assert folder.name.endswith("-x")
    run = read_run(folder)
    assert len(run.requests) == 28


def test_the_key_is_sent_and_never_recorded(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_API_KEY", "sk-secret")
    assert run_cli(arguments(server, tmp_path, "--rate", "5", "--duration", "0.5s")) == ExitCode.OK
    (folder,) = tmp_path.iterdir()
    assert "sk-secret" not in (folder / "run.json").read_text()


def test_a_config_gives_traffic_model_slo_and_engines(
    server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.csv").write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,50,5\n2023-11-16 18:15:48,60,7\n"
    )
    (tmp_path / "c.yaml").write_text(
        f"pools: [{{model: pool-model, instances: [{{url: '{server}'}}]}}]\n"
        "slo: {ttft: 1s, itl: 90ms}\n"
        "traffic: {seed: 9, warmup_requests: 2, trace: {file: t.csv, format: azure, speed: 10}}\n"
    )
    out = tmp_path / "runs"
    argv = ["load", "-c", str(tmp_path / "c.yaml"), "--url", server, "--out", str(out), "--emulated"]
    assert run_cli(argv) == ExitCode.OK
    text = capsys.readouterr().out
    assert "SLO: TTFT 1 s, ITL 90 ms" in text
    run = read_run(next(out.iterdir()))
    assert run.seed == 9
    assert [(r.plan.prompt_tokens, r.output_tokens) for r in run.requests] == [(50, 5), (60, 7)]


@pytest.mark.parametrize(
    ("more", "code", "says"),
    [
        ((), ExitCode.BAD_INPUT, "no traffic was given"),
        (("--rate", "5"), ExitCode.BAD_INPUT, "needs a --duration"),
        (("--rate", "5", "--duration", "1s", "--arrivals", "weird"), ExitCode.BAD_INPUT, "'weird' is not known"),
        (("--rate", "5", "--duration", "1s", "--pulse", "x"), ExitCode.BAD_INPUT, "FACTOR@START+LENGTH"),
        (("--rate", "5", "--duration", "1s", "--lengths", "zipf"), ExitCode.BAD_INPUT, "'zipf' is not known"),
        (("--rate", "5", "--duration", "1s", "--trace", "t"), ExitCode.BAD_INPUT, "both --rate and --trace"),
        (("--trace", "no/such.csv"), ExitCode.BAD_INPUT, "no/such.csv: cannot be read"),
        (("--trace", "no/such.csv", "--format", "xml"), ExitCode.BAD_INPUT, "'xml' is not known"),
        (("--rate", "5", "--duration", "10"), ExitCode.USAGE, "has no unit"),
        (("--rate", "5", "--duration", "1s"), ExitCode.UNAVAILABLE, "nobody answers HTTP at http://127.0.0.1:1"),
    ],
)
def test_what_cannot_be_run_is_one_sentence_and_its_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...], code: ExitCode, says: str
) -> None:
    assert run_cli(arguments("http://127.0.0.1:1", tmp_path, *more)) == code
    error = re.sub(r"[\s│]+", " ", capsys.readouterr().err)
    assert says in error
    assert "Traceback" not in error
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_ends_a_run_with_a_record_marked_interrupted(server: str, tmp_path: Path) -> None:
    argv = arguments(server, tmp_path, "--rate", "20", "--duration", "60s", "--arrivals", "constant")
    child = subprocess.Popen([sys.executable, "-m", "tidegate", *argv], stderr=subprocess.PIPE, text=True)
    assert child.stderr is not None
    for line in child.stderr:
        if line.startswith("load"):
            break
    threading.Timer(1.0, child.send_signal, [signal.SIGINT]).start()
    _, error = child.communicate(timeout=30)
    assert child.returncode == ExitCode.INTERRUPTED, error
    run = read_run(next(tmp_path.iterdir()))
    assert run.interrupted
    assert run.sent == len(run.requests)
    assert {record.outcome for record in run.requests} <= {Outcome.COMPLETED, Outcome.CLIENT_CANCELLED}


def test_a_pulse_is_written_factor_start_length_and_period() -> None:
    assert parse_pulse("5@10s+5s") == (5.0, 5.0, 10.0, None)
    assert parse_pulse("2.5@1m+500ms/2m") == (2.5, 0.5, 60.0, 120.0)
    with pytest.raises(BadInputError, match="FACTOR"):
        parse_pulse("5@10+5s")
