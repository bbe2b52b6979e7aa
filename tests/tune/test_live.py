"""Live trials: what disagrees stops, what was learned is used, GPU minutes are kept, and real processes answer."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tidegate.spec import ClusterSpec, EngineProfile, InstanceSpec, PhaseSpec, PoolSpec, SloSpec, TrafficSpec
from tidegate.spec.lock import Results
from tidegate.traffic.record import RunRecord
from tidegate.traffic.schedule import plan, planned_marks
from tidegate.tune.live import LiveTrial, Proof, disagreement, prove
from tidegate.tune.space import Setting, current
from tidegate.tune.trial import Ask, Case, Judge, TwinTrial
from tidegate.tune.verdict import Judged
from tidegate.twin.calibration import Calibration
from tidegate.twin.cluster import simulate

SLO = SloSpec()


def cluster() -> ClusterSpec:
    urls = [InstanceSpec(url="http://127.0.0.1:8001")]
    engine = EngineProfile(shape="llama-3.1-8b", gpus=1, weights="bf16", kv_cache="bf16", max_sequences=128)
    traffic = TrafficSpec(warmup_requests=0, phases=[PhaseSpec(name="steady", duration_s=10, rate=5)])
    return ClusterSpec(pools=[PoolSpec(model="tide", instances=urls, engine=engine)], traffic=traffic)


SPEC = cluster()
CASE = Case(spec=SPEC, base_dir=Path())
START = current(SPEC)
STEPS: list[Setting] = [{**START, "step_tokens": tokens} for tokens in (1024, 2048, 4096)]


def slower(factor: float) -> Callable[[ClusterSpec, int], RunRecord]:
    """An engine that is the twin, with steps `factor` as long."""

    def run(spec: ClusterSpec, seed: int) -> RunRecord:
        plans = plan(spec.traffic, Path())
        marks = planned_marks(spec.traffic, plans)
        return simulate(spec, plans, marks=marks, calibration=Calibration(factor, 0.0, factor, 0.0))

    return run


def twin(factor: float) -> Judge:
    return TwinTrial(Case(spec=SPEC, base_dir=Path(), step_factor=factor))


def proof_of(run: Callable[[ClusterSpec, int], RunRecord], error: float, budget_s: float = 1e9) -> Proof:
    return prove(STEPS, twin, LiveTrial(CASE, run, budget_s), seed=1, error=error)


def test_an_engine_like_the_twin_proves_the_shortlist() -> None:
    found = proof_of(slower(1.0), 0.01)
    assert (found.stopped, found.factor, len(found.steps)) == ("", 1.0, 3)
    assert found.winner is not None
    assert found.winner.source == "emulated"


def test_the_twin_learns_how_long_steps_are() -> None:
    mild: list[Setting] = [{**START, "step_tokens": tokens} for tokens in (768, 1024)]
    found = prove(mild, twin, LiveTrial(CASE, slower(1.25)), seed=1, error=0.5)
    assert 1.2 < found.factor < 1.3
    assert found.steps[0].factor == 1.0
    second = found.steps[1]
    assert second.factor > 1.2
    assert second.predicted is not None
    assert second.seen is not None
    assert disagreement(second.predicted, second.seen, SLO, 0.05) == "", "with what it learned it is right"


def test_disagreement_stops_everything_with_a_message() -> None:
    found = proof_of(slower(3.0), 0.1)
    assert len(found.steps) == 1
    assert found.winner is None
    assert found.stopped.startswith("twin and engine disagree beyond 10%: P99 ITL ")
    assert "predicted" in found.stopped
    assert "seen" in found.stopped


def test_what_fails_by_what_was_learned_is_not_run() -> None:
    """Steps six times as long: the first run teaches it, the larger budgets then miss the ITL in the twin already."""
    found = proof_of(slower(6.0), 10.0)
    skipped = [step for step in found.steps if step.seen is None]
    assert skipped
    assert all(step.note.startswith("not run: by what was learned it fails") for step in skipped)


def test_gpu_minutes_are_kept() -> None:
    """The scenario alone takes 10 s on one GPU."""
    ran: list[int] = []

    def run(spec: ClusterSpec, seed: int) -> RunRecord:
        ran.append(seed)
        return slower(1.0)(spec, seed)

    found = proof_of(run, 1.0, budget_s=9.0)
    assert (found.stopped, ran, found.winner) == ("the GPU minutes are used up", [], None)
    assert len(proof_of(run, 1.0, budget_s=11.0).steps) >= 1


def test_unknown_agrees_with_nothing() -> None:
    def judged(results: Results | None) -> Judged:
        return Judged(setting=START, feasible=True, excess=0, goal=1, results=results)

    whole = Results(goodput=0.9, ttft_p99_s=0.4, itl_p99_s=0.04)
    assert disagreement(judged(whole), judged(whole), SLO, 0.0) == ""
    assert "goodput is unknown" in disagreement(judged(whole), judged(Results(ttft_p99_s=0.4, itl_p99_s=0.04)), SLO, 1)
    assert "P99 ITL is unknown" in disagreement(judged(whole), judged(Results(goodput=0.9, ttft_p99_s=0.4)), SLO, 1)
    assert disagreement(None, judged(whole), SLO, 1)
    assert disagreement(judged(None), judged(whole), SLO, 1)


def test_a_risky_setting_never_reaches_an_engine() -> None:
    def run(spec: ClusterSpec, seed: int) -> RunRecord:
        raise AssertionError("it was started")

    asks: Sequence[Ask] = [Ask(setting={**START, "memory_fraction": 0.99}, seed=1)]
    (judged,) = LiveTrial(CASE, run).judge(asks)
    assert judged is not None
    assert "out-of-memory risk" in judged.why


def test_a_tune_is_proved_on_real_processes(tmp_path: Path) -> None:
    """Emulated engine, gateway and load driver, started for the setting and gone afterwards."""
    (tmp_path / "tidegate.yaml").write_text(
        "pools:\n  - model: tide\n    instances: [{url: 'http://127.0.0.1:8001'}]\n"
        "    engine: {shape: llama-3.1-8b, gpus: 1, weights: bf16, kv_cache: bf16, max_sequences: 128}\n"
        "slo: {ttft: 5s, itl: 500ms}\n"
        "traffic: {warmup_requests: 2, phases: [{name: steady, duration: 6s, rate: 3}]}\n"
    )
    words = ["--trials", "2", "--seeds", "1", "--jobs", "1", "--no-html", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "tidegate", "tune", *words, "--live", "emulated", "--shortlist", "1", "--error", "0.9"],
        capture_output=True, text=True, timeout=115, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    (step,) = report["proof"]["steps"]
    assert step["seen"]["source"] == "emulated"
    assert step["seen"]["results"]["goodput"] > 0.9
    assert report["proof"]["gpu_minutes"] >= 0.1
    assert report["winner"]["setting"] == step["setting"]
