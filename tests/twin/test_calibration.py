"""Calibration: constants are found again, a slow API server shows to readers only, measured runs are met."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.cli import run as tidegate
from tidegate.errors import BadInputError, ExitCode
from tidegate.spec import EngineProfile
from tidegate.traffic.plan import PlannedRequest
from tidegate.traffic.record import RunRecord
from tidegate.twin.calibration import Calibration, lag_after
from tidegate.twin.calibrationfile import read_calibration
from tidegate.twin.cluster import simulate
from tidegate.twin.cost import StepCost
from tidegate.twin.fitting import LoopPoint, Measured, StepPoint, fit, least_squares, middle
from tidegate.twin.measured import FIGURES, add_first_tokens, add_grid, add_loop, figures_told, patient, replay

H200 = EngineProfile(
    shape="llama-3.1-8b", hardware="h200_sxm", gpus=1, weights="bf16", kv_cache="bf16", memory_fraction=0.92,
    step_tokens=8192, max_sequences=1024, context_tokens=16384,
)  # fmt: skip
GRID = EngineProfile(
    shape="llama-3.1-8b", hardware="h200_sxm", gpus=1, weights="bf16", kv_cache="bf16", memory_fraction=0.92,
    step_tokens=16384, max_sequences=1024, context_tokens=16384,
)  # fmt: skip
KV_TOKENS = 919_824


def streams(count: int, output: int, calibration: Calibration | None) -> RunRecord:
    plans = [PlannedRequest(i, 0.0, 64, output) for i in range(count)]
    return simulate(patient(H200), plans, admission=False, calibration=calibration)


def test_constants_are_found_again() -> None:
    """Points made with known constants."""
    plain = StepCost.for_profile(H200)
    truth = Calibration(1.1, 2e-4, 1.2, 3e-3, decode_stream_s=5e-6, prefill_stream_s=2e-5, ingest_s=0.007)
    cost = StepCost.for_profile(H200, truth)
    measured = Measured()
    for batch in (1, 8, 64, 256, 512):
        for context in (300.0, 1000.0, 5000.0):
            point = StepPoint(0, batch, context, cost.decode_s(batch, context))
            measured.decode.append((plain, point))
    for batch in (16, 64, 256):
        for new in (128, 1024, 4096):
            point = StepPoint(new, batch, 1100.0, cost.prefill_s(new, new * new / 2, batch, 1100.0))
            measured.mixed.append((plain, point))
    for tokens in (128, 1024, 4096):
        told = truth.ingest_s + cost.prefill_s(tokens, tokens * tokens / 2, 0, 0.0)
        measured.first_tokens.append((plain, tokens, told))
    measured.loops.append((plain, LoopPoint(512, 1024, 1100.0, 512 * 1e-4, 13.0)))
    found = fit(measured)
    for name, value in truth.values().items():
        if name != "front_chunk_s":
            assert found.values()[name] == pytest.approx(value, rel=1e-6), name
    assert found.front_chunk_s == pytest.approx(1e-4)


def test_nothing_measured_changes_nothing() -> None:
    assert fit(Measured()).values() == Calibration().values()


def test_least_squares_and_the_median_are_those_of_the_textbook() -> None:
    assert least_squares([([1.0, 0.0], 2.0), ([0.0, 1.0], 3.0), ([1.0, 1.0], 5.0)]) == pytest.approx([2.0, 3.0])
    assert (middle([3.0, 1.0, 2.0]), middle([4.0, 1.0, 2.0, 3.0])) == (2.0, 2.5)


@given(st.floats(0, 5), st.floats(0.001, 0.1), st.integers(1, 50), st.floats(0, 0.2))
def test_the_lag_of_many_steps_is_that_of_one_after_the_other(
    lag_s: float, step_s: float, steps: int, chunk_s: float
) -> None:
    one_by_one = lag_s
    for _ in range(steps):
        one_by_one = lag_after(one_by_one, step_s, 1, chunk_s)
    assert lag_after(lag_s, step_s * steps, steps, chunk_s) == pytest.approx(one_by_one, abs=1e-9)


def test_a_slow_front_end_holds_readers_back_and_not_the_engine() -> None:
    """200 streams at 100 µs a chunk are 20 ms a token, where the engine needs about 9."""
    fast, slow = streams(200, 100, None), streams(200, 100, Calibration(front_chunk_s=1e-4))
    assert slow.instances[0].busy_s == pytest.approx(fast.instances[0].busy_s)
    for record in slow.requests:
        assert record.first_token_s is not None
        assert record.end_s is not None
        assert (record.end_s - record.first_token_s) / 99 == pytest.approx(0.02, rel=0.1)
        assert record.longest_gap_s >= 0.0199
    few = streams(20, 100, Calibration(front_chunk_s=1e-4))
    plain = streams(20, 100, None)
    assert few.requests[0].end_s == pytest.approx(plain.requests[0].end_s, abs=0.003)


def test_every_token_of_a_lagging_front_end_is_still_counted_once() -> None:
    run = streams(50, 40, Calibration(front_chunk_s=5e-4, ingest_s=0.01))
    assert sum(run.gaps.values()) == 50 * 39
    assert {record.output_tokens for record in run.requests} == {40}
    total_s = sum(bucket * count for bucket, count in run.gaps.items()) / 1e6
    spans_s = sum((r.end_s or 0.0) - (r.first_token_s or 0.0) for r in run.requests)
    assert total_s == pytest.approx(spans_s, rel=0.01)


def test_a_client_that_leaves_during_the_ingestion_never_reaches_the_engine() -> None:
    plans = [PlannedRequest(0, 0.0, 500, 50), PlannedRequest(1, 5.0, 500, 50)]
    run = simulate(patient(H200), plans, cancels={0: 0.005}, calibration=Calibration(ingest_s=0.01))
    assert [record.outcome.value for record in run.requests] == ["client_cancelled", "completed"]
    assert run.instances[0].prompt_tokens == 500


def test_measured_runs_that_were_held_out_are_met(shared_dir: Path) -> None:
    folder = shared_dir / "measured" / "h200"
    measured = Measured()
    add_grid(measured, folder / "grid-8b-bf16.json", GRID)
    add_first_tokens(measured, folder / "default-prefill.json", H200)
    for count in (1, 16, 64, 128, 256, 512):
        add_loop(measured, folder / f"default-c{count}.json", H200)
    fitted = fit(measured)
    for name in ("default-trace", "default-mixed-c24"):
        path = folder / f"{name}.json"
        told = figures_told(path)
        before = replay(path, H200, KV_TOKENS, None).errors_percent(told)
        after = replay(path, H200, KV_TOKENS, fitted).errors_percent(told)
        assert max(abs(after[figure]) for figure in FIGURES) < 8.0
        assert sum(map(abs, after.values())) < sum(map(abs, before.values()))


CONFIG = """
pools:
  - model: m
    instances: [{url: http://127.0.0.1:8001}]
    engine: {shape: llama-3.1-8b, hardware: h200_sxm, gpus: 1, weights: bf16, kv_cache: bf16}
traffic:
  phases: [{name: steady, duration: 5s, rate: 4}]
"""


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "tidegate.yaml"
    path.write_text(CONFIG)
    return str(path)


def test_the_command_fits_judges_writes_and_simulate_reads(
    config: str, tmp_path: Path, shared_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = shared_dir / "measured" / "h200", tmp_path / "fit.json"
    words = ["calibrate", "-c", config, "--grid", str(folder / "grid-8b-bf16.json"), "--first",
             str(folder / "default-prefill.json"), "--loop", str(folder / "default-c256.json"),
             "--held-out", str(folder / "default-mixed-c24.json"), "--out", str(out)]  # fmt: skip
    assert tidegate(words) == ExitCode.OK
    told = capsys.readouterr().out
    assert "default-mixed-c24.json" in told
    assert "→" in told
    file = read_calibration(out)
    assert file.fitted_on[0].file == "grid-8b-bf16.json"
    assert file.calibration().prefill_factor > 1.0
    tails = []
    for more in ([], ["--calibration", str(out)]):
        assert tidegate(["simulate", "-c", config, "--json", *more]) == ExitCode.OK
        tails.append(json.loads(capsys.readouterr().out)["total"]["ttft"]["p50_s"])
    assert all(low < high for low, high in pairwise(tails))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "nothing to fit on"),
        (["--loop", "none.json"], "none.json: cannot be read as a measured run"),
        (["--loop", "a.json", "--held-out", "b/a.json"], "a.json cannot be fitted on and held out"),
    ],
)
def test_bad_input_is_one_sentence(
    config: str, words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tidegate(["calibrate", "-c", config, *words]) == ExitCode.BAD_INPUT
    assert told in capsys.readouterr().err


def test_a_file_of_another_kind_is_named(shared_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"default-c1.json: no step grid, 'decode' is missing"):
        add_grid(Measured(), shared_dir / "measured" / "h200" / "default-c1.json", H200)
    wrong = tmp_path / "x.json"
    wrong.write_text("{}")
    with pytest.raises(BadInputError, match="cannot be read as a calibration"):
        read_calibration(wrong)
