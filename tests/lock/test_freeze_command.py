"""`tidegate freeze` and `tidegate diff` as a user meets them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tidegate.spec.lock_file import load_lock
from tidegate.tune.digests import digest_folder, nvidia_driver

CLUSTER = """\
pools:
  - model: llama
    instances: [{url: "http://127.0.0.1:8001"}, {url: "http://127.0.0.1:8002"}]
    engine: {step_tokens: STEP, max_sequences: 128}
traffic: {warmup_requests: 0, phases: [{name: steady, duration: 10s, rate: 6}]}
"""


def tidegate(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tidegate", *words], capture_output=True, text=True, timeout=100, cwd=folder, check=False
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tidegate.yaml").write_text(CLUSTER.replace("STEP", "1024"))
    return tmp_path


def freeze(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return tidegate(folder, "freeze", "--engine", "vllm==0.33.0", *words)


def test_the_way_from_a_cluster_document_to_a_frozen_lock(folder: Path) -> None:
    done = freeze(folder, "--seeds", "2", "--state", "verified")
    assert done.returncode == 0, done.stderr
    assert "verified" in done.stdout
    assert "simulated only" in done.stderr
    done = tidegate(folder, "freeze", "--lock", "tidegate.lock", "--state", "frozen")
    assert done.returncode == 0, done.stderr
    lock = load_lock(folder / "tidegate.lock")
    assert lock.state == "frozen"
    assert lock.evidence[0].seeds == [1, 2]
    assert lock.evidence[0].config == lock.hash
    assert lock.evidence[0].meets_slo
    assert "--max-num-batched-tokens 1024" in lock.engines[0].options
    assert "--scheduling-policy fcfs" in lock.engines[0].defaults
    again = freeze(folder, "--seeds", "0")
    assert again.returncode == 3
    assert "is frozen" in again.stderr
    assert freeze(folder, "--seeds", "0", "--break-glass").returncode == 0
    assert load_lock(folder / "tidegate.lock").state == "draft"


def test_without_proof_there_is_only_a_draft(folder: Path) -> None:
    done = freeze(folder, "--seeds", "0", "--state", "verified")
    assert done.returncode == 3
    assert "it has no evidence" in done.stderr
    assert not (folder / "tidegate.lock").exists()
    (folder / "tidegate.yaml").write_text(CLUSTER.replace("STEP", "8192") + "slo: {itl: 20ms}\n")
    done = freeze(folder, "--seeds", "1", "--state", "verified")
    assert done.returncode == 3
    assert "misses the SLO" in done.stderr


def test_an_engine_version_is_asked_for(folder: Path) -> None:
    done = tidegate(folder, "freeze", "--seeds", "0")
    assert done.returncode == 3
    assert "no engine version is known for llama" in done.stderr
    done = tidegate(folder, "freeze", "--seeds", "0", "--engine", "vllm")
    assert done.returncode == 3
    assert "names no version" in done.stderr


def test_a_recorded_run_is_evidence(folder: Path) -> None:
    run = tidegate(folder, "simulate", "--out", "runs")
    assert run.returncode == 0, run.stderr
    (path,) = (folder / "runs").iterdir()
    done = freeze(folder, "--seeds", "0", "--run", str(path), "--state", "verified")
    assert done.returncode == 0, done.stderr
    (one,) = load_lock(folder / "tidegate.lock").evidence
    assert (one.source, one.requests) == ("twin", json.loads((path / "run.json").read_text())["request_count"])


def test_a_signed_lock_carries_its_signature(folder: Path) -> None:
    (folder / "key").write_text("k" * 32)
    assert freeze(folder, "--seeds", "0", "--key", "key").returncode == 0
    assert load_lock(folder / "tidegate.lock").signature
    (folder / "key").write_text("short")
    assert "at least 16 bytes" in freeze(folder, "--seeds", "0", "--key", "key").stderr


def test_diff_names_and_weighs_the_difference(folder: Path) -> None:
    freeze(folder, "--seeds", "0", "-o", "old.lock")
    same = tidegate(folder, "diff", "old.lock", "old.lock")
    assert (same.returncode, "say the same" in same.stdout) == (0, True)
    (folder / "tidegate.yaml").write_text(CLUSTER.replace("STEP", "8192"))
    freeze(folder, "--seeds", "0", "-o", "new.lock")
    done = tidegate(folder, "diff", "old.lock", "new.lock")
    assert done.returncode == 1
    assert "cluster.pools[llama].engine.step_tokens: 1024 → 8192" in done.stdout
    assert done.stdout.count("alone: goodput") == 1
    shown = json.loads(tidegate(folder, "diff", "old.lock", "new.lock", "--json").stdout)
    assert shown["differences"][0]["effect"]["itl_p99"] > shown["results"]["itl_p99"]
    assert tidegate(folder, "diff", "old.lock").returncode == 3


def test_diff_shows_an_edit_by_hand_instead_of_refusing(folder: Path) -> None:
    freeze(folder, "--seeds", "0")
    text = (folder / "tidegate.lock").read_text().replace("max_sequences: 128", "max_sequences: 256")
    (folder / "edited.lock").write_text(text)
    done = tidegate(folder, "diff", "tidegate.lock", "edited.lock", "--no-effect")
    assert "changed by hand" in done.stderr
    assert "128 → 256" in done.stdout


def test_the_lock_is_yaml_that_others_read(folder: Path) -> None:
    freeze(folder, "--seeds", "0")
    assert yaml.safe_load((folder / "tidegate.lock").read_text())["engines"][0]["version"] == "0.33.0"


def test_digests_name_what_was_loaded(tmp_path: Path) -> None:
    for name in ("a.safetensors", "b.safetensors", "tokenizer.json"):
        (tmp_path / name).write_text(name)
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "{{x}}"}')
    first = digest_folder(tmp_path)
    assert first.weights
    assert first.tokenizer
    assert first.chat_template
    (tmp_path / "a.safetensors").rename(tmp_path / "swap")
    (tmp_path / "b.safetensors").rename(tmp_path / "a.safetensors")
    (tmp_path / "swap").rename(tmp_path / "b.safetensors")
    swapped = digest_folder(tmp_path)
    assert swapped.weights != first.weights, "the same shards in other places are other weights"
    assert swapped.tokenizer == first.tokenizer
    (tmp_path / "chat_template.jinja").write_text("{{y}}")
    assert digest_folder(tmp_path).chat_template != first.chat_template
    empty = tmp_path / "empty"
    empty.mkdir()
    assert digest_folder(empty).weights is None


def test_the_driver_is_read_from_the_kernel(tmp_path: Path) -> None:
    page = tmp_path / "version"
    page.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.133.20  Release Build\n")
    assert nvidia_driver(page) == "570.133.20"
    page.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue Jun 6\n")
    assert nvidia_driver(page) == "535.54.03"
    assert nvidia_driver(tmp_path / "none") is None
