"""An upgrade says what the new version drops, does unasked and no longer measures, and writes a draft for it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tidegate.errors import BadInputError
from tidegate.spec import ClusterSpec, EngineProfile, InstanceSpec, PhaseSpec, PoolSpec, TrafficSpec
from tidegate.spec.lock import Lock, LockedFiles
from tidegate.spec.lock_file import load_lock, lock_text
from tidegate.tune.freeze import Known, freeze
from tidegate.tune.upgrade import upgrade

WRITTEN = "2026-01-31T08:15:00Z"


def a_lock(version: str = "0.8.5", kind: str = "vllm", **known: Any) -> Lock:
    pool = PoolSpec(
        model="llama",
        instances=[InstanceSpec(url=f"http://10.0.0.{number}:8000") for number in (1, 2)],
        engine=EngineProfile(kind=kind, step_tokens=1024, max_sequences=128),  # type: ignore[arg-type]
    )
    traffic = TrafficSpec(warmup_requests=0, phases=[PhaseSpec(name="p", duration_s=10, rate=6)])
    spec = ClusterSpec(pools=[pool], traffic=traffic)
    return freeze(spec, {"llama": Known(version=version, **known)}, written=WRITTEN)


def test_moved_defaults_are_told_with_whether_the_lock_stands_against_them() -> None:
    """vLLM raised max-num-seqs from 256 to 1024 under whoever did not set it (vllm-project/vllm#16551)."""
    found = upgrade(a_lock("0.8.4"), "vllm", "0.33.0", written=WRITTEN).pools[0]
    moved = {one.option: one for one in found.defaults}
    assert moved["--max-num-seqs"].was == "256"
    assert "1024" in moved["--max-num-seqs"].now
    assert all(one.set_in_lock for one in moved.values())


def test_going_back_shows_defaults_the_other_way_round() -> None:
    found = upgrade(a_lock("0.33.0"), "vllm", "0.19.1", written=WRITTEN).pools[0]
    moved = {one.option: (one.was, one.now) for one in found.defaults}
    assert moved["--gpu-memory-utilization"] == ("0.92", "0.9")
    assert "--max-num-seqs" not in moved


def test_options_the_new_version_lacks_are_dropped_aloud() -> None:
    """--shutdown-timeout is a present option; an older vLLM does not take it."""
    found = upgrade(a_lock("0.33.0"), "vllm", "0.8.5", written=WRITTEN)
    pool = found.pools[0]
    assert pool.dropped == ["--shutdown-timeout 15"]
    assert any("does not take --shutdown-timeout" in sentence for sentence in pool.remarks)
    assert "--shutdown-timeout 15" not in found.draft.engines[0].options


def test_renamed_metrics_are_told_with_their_new_names() -> None:
    pool = upgrade(a_lock("0.8.5"), "vllm", "0.33.0", written=WRITTEN).pools[0]
    gone = {one.name: one.now for one in pool.metrics}
    assert gone["vllm:gpu_cache_usage_perc"] == "vllm:kv_cache_usage_perc"
    assert "vllm:num_requests_running" not in gone


def test_the_draft_keeps_what_stays_true_and_forgets_the_rest() -> None:
    files = LockedFiles(weights="sha256:" + "1" * 64)
    old = a_lock("0.32.0", files=files, kv_tokens=900_000, driver="570.1", cuda="12.8", image="sha256:" + "2" * 64)
    engines = [msgspec.structs.replace(old.engines[0], env=["NCCL_NET_GDR_LEVEL=SYS"])]
    old = msgspec.structs.replace(old, engines=engines, state="frozen")
    draft = upgrade(old, "vllm", "0.33.0", written=WRITTEN).draft
    new = draft.engines[0]
    assert (draft.state, draft.evidence, new.version) == ("draft", [], "0.33.0")
    assert (new.files, new.hardware.driver, new.env) == (files, "570.1", ["NCCL_NET_GDR_LEVEL=SYS"])
    assert (new.hardware.kv_tokens, new.hardware.cuda, new.image) == (None, None, None)
    assert draft.hash != old.hash


def test_what_makes_no_sense_gets_a_sentence() -> None:
    with pytest.raises(BadInputError, match="has no sglang engine"):
        upgrade(a_lock(), "sglang", "0.5.23", written=WRITTEN)
    with pytest.raises(BadInputError, match=r"has vllm 0\.8\.5 already"):
        upgrade(a_lock(), "vllm", "0.8.5", written=WRITTEN)


def test_the_command_simulates_again_and_writes_the_draft(tmp_path: Path) -> None:
    (tmp_path / "tidegate.lock").write_text(lock_text(a_lock("0.32.0")))

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tidegate", "upgrade", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=90, cwd=tmp_path, check=False)

    done = run("--engine", "vllm==0.33.0", "--seeds", "1")
    assert done.returncode == 0, done.stderr
    assert "llama: 0.32.0 → 0.33.0" in done.stdout
    assert "after, in the twin:  goodput" in done.stdout
    draft = load_lock(tmp_path / "tidegate.lock.next")
    assert draft.evidence[0].config == draft.hash
    back = run("--engine", "vllm==0.8.5", "--seeds", "0", "--json", "-o", "old.lock")
    assert back.returncode == 1, "an option of the lock is lost"
    assert json.loads(back.stdout)["pools"][0]["dropped"] == ["--shutdown-timeout 15"]
    assert run().returncode == 3
    assert "to which version?" in run().stderr
    assert run("--engine", "vllm").returncode == 3
