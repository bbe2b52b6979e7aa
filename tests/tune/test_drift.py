"""Drift is named setting by setting, another spelling is none, and what nobody can tell is not called the same."""

from __future__ import annotations

import json
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tidegate.cli.verify import Verified, metrics
from tidegate.node.process import Child
from tidegate.spec import ClusterSpec, EngineProfile, InstanceSpec, PoolSpec
from tidegate.spec.lock import Lock, LockedFiles
from tidegate.spec.lock_file import load_lock, lock_text
from tidegate.testing.live import free_port
from tidegate.testing.processes import MODEL, Emulated, Tidegate
from tidegate.tune.drift import Check, compare, drifted, emulated_profile
from tidegate.tune.freeze import Known, freeze
from tidegate.tune.running import Running, look, process_of
from tidegate.wire.prometheus import parse

WRITTEN = "2026-01-31T08:15:00Z"
SMALL = {"shape": "llama-3.1-8b", "gpus": 1, "weights": "bf16", "kv_cache": "bf16"}


def a_lock(kind: str = "vllm", version: str = "0.33.0", url: str = "http://10.0.0.1:8000", **known: Any) -> Lock:
    profile = EngineProfile(kind=kind, **SMALL)  # type: ignore[arg-type]
    spec = ClusterSpec(pools=[PoolSpec(model=MODEL, instances=[InstanceSpec(url=url, name="one")], engine=profile)])
    return freeze(spec, {MODEL: Known(version=version, **known)}, written=WRITTEN)


def with_env(lock: Lock, *env: str) -> Lock:
    return msgspec.structs.replace(lock, engines=[msgspec.structs.replace(lock.engines[0], env=list(env))])


def as_locked(lock: Lock, **changes: Any) -> Running:
    """What a real vLLM would show that runs just so."""
    engine = lock.engines[0]
    words = [word for line in engine.options for word in shlex.split(line)]
    entry = ["python3", "-m", "vllm.entrypoints.openai.api_server"]
    values: dict[str, Any] = {
        "url": "http://10.0.0.1:8000",
        "version": "0.33.0",
        "model": MODEL,
        "context_tokens": 16384,
        "cache": {"block_size": "16", "cache_dtype": "auto", "gpu_memory_utilization": "0.92",
                  "enable_prefix_caching": "True", "kv_cache_size_tokens": "400000"},
        "argv": [*entry, *words, "--port", "8000"],
        "env": dict(line.split("=", 1) for line in engine.env) | {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "0"},
    }  # fmt: skip
    return Running(**{**values, **changes})


def differing(checks: list[Check], strict: bool = False) -> dict[str, tuple[str, str]]:
    return {one.setting: (one.locked, one.seen) for one in drifted(checks, strict)}


def spelled(argv: list[str], *changes: tuple[str, str]) -> list[str]:
    line = shlex.join(argv)
    for old, new in changes:
        assert old in line, line
        line = line.replace(old, new)
    return shlex.split(line)


# --- a real engine's words ---------------------------------------------------------------------------------------


def test_what_runs_as_locked_has_no_drift() -> None:
    lock = with_env(a_lock(kv_tokens=400_500), "NCCL_NET_GDR_LEVEL=SYS")
    checks = compare(lock, MODEL, as_locked(lock))
    assert differing(checks, strict=True) == {}
    assert len(checks) > 15


def test_another_spelling_is_no_drift() -> None:
    lock = a_lock()
    seen = as_locked(lock)
    assert seen.argv is not None
    argv = spelled(
        seen.argv,
        ("--max-num-seqs 1024", "--max_num_seqs=1024"),
        ("--tensor-parallel-size 1", "-tp 1"),
        ("--gpu-memory-utilization 0.92", "--gpu-memory-utilization 0.920"),
        (f"--model {MODEL}", ""),
        ("-m vllm.entrypoints.openai.api_server", f"/usr/bin/vllm serve {MODEL}"),
    )
    assert differing(compare(lock, MODEL, as_locked(lock, argv=argv[1:]))) == {}


def test_each_difference_is_named_with_both_values() -> None:
    lock = with_env(a_lock(kv_tokens=400_000), "NCCL_NET_GDR_LEVEL=SYS")
    seen = as_locked(lock)
    assert seen.argv is not None
    assert seen.cache is not None
    argv = spelled(
        seen.argv,
        ("--max-num-seqs 1024", "--max-num-seqs 256"),
        ("--enable-prefix-caching", "--no-enable-prefix-caching"),
        ("--block-size 16", "--swap-space 4"),
    )
    other = msgspec.structs.replace(
        seen,
        version="0.32.0",
        context_tokens=8192,
        argv=argv,
        env={"NCCL_NET_GDR_LEVEL": "PIX", "VLLM_USE_V1": "0", "HOME": "/root"},
        cache={**seen.cache, "gpu_memory_utilization": "0.95", "kv_cache_size_tokens": "300000"},
    )
    assert differing(compare(lock, MODEL, other)) == {
        "version": ("0.33.0", "0.32.0"),
        "context_tokens": ("16384", "8192"),
        "--max-num-seqs": ("1024", "256"),
        "--enable-prefix-caching": ("set", "off"),
        "--block-size": ("16", "not set"),
        "--swap-space": ("not set", "4"),
        "NCCL_NET_GDR_LEVEL": ("SYS", "PIX"),
        "VLLM_USE_V1": ("not set", "0"),
        "memory_fraction": ("0.92", "0.95"),
        "kv_tokens": ("400000", "300000"),
    }


def test_a_build_of_the_release_is_the_release() -> None:
    lock = a_lock()
    for version, drifts in (("0.33.0+cu130", False), ("0.33.0.post1", False), ("0.33.01", True), ("0.33", True)):
        assert bool(differing(compare(lock, MODEL, as_locked(lock, version=version)))) == drifts


def test_what_nobody_can_tell_is_unknown_and_not_the_same() -> None:
    lock = a_lock(driver="570.1", files=LockedFiles(weights="sha256:" + "0" * 64), kv_tokens=4)
    bare = Running(url="http://10.0.0.1:8000", version="0.33.0", model=MODEL)
    checks = compare(lock, MODEL, bare)
    assert differing(checks) == {}
    told = {one.setting for one in checks if one.verdict == "unknown"}
    assert {"driver", "weights", "kv_tokens", "command line", "cache configuration", "context_tokens"} <= told
    assert differing(checks, strict=True).keys() == told


def test_other_weights_and_another_lock_are_drift() -> None:
    lock = a_lock(files=LockedFiles(weights="sha256:" + "0" * 64))
    env = {"TIDEGATE_LOCK": "sha256:" + "1" * 64}
    found = differing(compare(lock, MODEL, as_locked(lock, env=env, files=LockedFiles(weights="sha256:" + "2" * 64))))
    assert found.keys() == {"weights", "lock"}


def test_sglangs_own_account_of_its_arguments(shared_dir: Path) -> None:
    """A recorded /server_info of SGLang 0.5.17: step 8192, fraction 0.88, bf16 KV, pages of one token."""
    text = (shared_dir / "reference/engines/sglang/run-0.5.17/server_info.txt").read_text()
    server = json.loads(text[text.index("{") :])
    lock = a_lock("sglang", "0.5.17", kv_tokens=879_000)
    seen = Running(url="http://h", version=server["version"], model=MODEL, context_tokens=16384, server=server)
    found = differing(compare(lock, MODEL, seen))
    assert found["--mem-fraction-static"] == ("0.92", "0.88")
    assert found["--page-size"] == ("16", "1")
    assert found["--max-running-requests"] == ("1024", "not set")
    assert not {"--tp-size", "--chunked-prefill-size", "--kv-cache-dtype", "--context-length", "kv_tokens"} & set(found)


# --- emulated engines, as processes ------------------------------------------------------------------------------


def verify(folder: Path, lock: Lock, *words: str) -> tuple[int, str]:
    (folder / "tidegate.lock").write_text(lock_text(lock))
    with Tidegate(["verify", str(folder / "tidegate.lock"), *words], folder / "verify.log") as command:
        code = command.wait_exit()
    output = command.output()
    (folder / "verify.log").unlink()
    return code, output


def test_an_emulated_engine_as_locked(emulated: Emulated, tmp_path: Path) -> None:
    lock = a_lock(url=emulated.url)
    seen = look(emulated.url)
    assert seen.emulated
    assert seen.kv_tokens is not None
    assert seen.kv_tokens > 100_000
    code, output = verify(tmp_path, a_lock(url=emulated.url, kv_tokens=seen.kv_tokens), "--strict")
    assert code == 0, output
    assert "one: as locked" in output
    assert verify(tmp_path, lock)[0] == 0


def test_freeze_asks_the_engines_that_run(emulated: Emulated, tmp_path: Path) -> None:
    """Version and KV tokens come from the engine itself, and verify then finds the same."""
    config, lock = tmp_path / "tidegate.yaml", tmp_path / "asked.lock"
    engine = "shape: llama-3.1-8b, gpus: 1, weights: bf16, kv_cache: bf16"
    config.write_text(f"pools: [{{model: {MODEL}, instances: [{{url: '{emulated.url}'}}], engine: {{{engine}}}}}]\n")
    words = ["freeze", "-c", str(config), "--ask", "--seeds", "0", "-o", str(lock)]
    with Tidegate(words, tmp_path / "freeze.log") as command:
        assert command.wait_exit() == 0, command.output()
    made = load_lock(lock).engines[0]
    assert made.version == "0.33.0"
    assert made.hardware.kv_tokens == look(emulated.url).kv_tokens
    with Tidegate(["verify", str(lock), "--strict"], tmp_path / "verify.log") as command:
        assert command.wait_exit() == 0, command.output()
    with Tidegate([*words, "--engine", "vllm==0.32.0", "--break-glass"], tmp_path / "other.log") as command:
        assert command.wait_exit() == 3
    assert "not of one version: 0.32.0, 0.33.0" in command.output()


def test_an_engine_started_otherwise_is_drift(tmp_path: Path) -> None:
    with Emulated(tmp_path / "log", "--max-sequences", "64", "--memory-fraction", "0.8") as engine:
        code, output = verify(tmp_path, a_lock(url=engine.url), "--textfile", str(tmp_path / "tide.prom"))
    assert code == 1
    assert "max_sequences (command line): locked 1024, running 64" in output
    assert "memory_fraction (metrics): locked 0.92, running 0.8" in output
    page = parse((tmp_path / "tide.prom").read_text())
    assert page.bad_lines == 0
    assert page.sum("tidegate_lock_matches") == 0
    assert {sample.labels["setting"] for sample in page.get("tidegate_lock_drift")} == {
        "max_sequences",
        "memory_fraction",
    }


def test_nobody_there_is_not_drift(tmp_path: Path) -> None:
    code, output = verify(tmp_path, a_lock(url=f"http://127.0.0.1:{free_port()}"))
    assert code == 4
    assert "does not answer" in output


def test_an_edited_lock_is_refused_with_the_line(emulated: Emulated, tmp_path: Path) -> None:
    path = tmp_path / "edited.lock"
    path.write_text(lock_text(a_lock(url=emulated.url)).replace("step_tokens: 8192", "step_tokens: 4096"))
    with Tidegate(["verify", str(path)], tmp_path / "log") as command:
        assert command.wait_exit() == 3
    assert "step_tokens: changed by hand" in command.output()


def test_the_watch_sees_a_restart_with_other_settings(tmp_path: Path) -> None:
    """An engine that comes back with another batch size is found at the next look."""
    port = free_port()
    lock = tmp_path / "tidegate.lock"
    lock.write_text(lock_text(a_lock(url=f"http://127.0.0.1:{port}")))
    with Emulated(tmp_path / "first.log", port=port):
        watch = Tidegate(["verify", str(lock), "--every", "1s", "--json"], tmp_path / "watch.log")
        with watch:
            watch.wait_ready(lambda: '"verdict":"ok"' in watch.output(), 30)
            # The next looks find nobody, then the other engine.
            watch.wait_ready(lambda: watch.output().count("\n") >= 2, 30)
    with (
        Emulated(tmp_path / "second.log", "--max-sequences", "32", port=port),
        Tidegate(["verify", str(lock), "--every", "1s", "--json"], tmp_path / "again.log") as again,
    ):
        again.wait_ready(lambda: '"verdict":"failed"' in again.output(), 30)
    first = json.loads(again.output().splitlines()[0])
    assert [one["setting"] for one in first["instances"][0]["checks"] if one["verdict"] == "drift"] == ["max_sequences"]


def test_a_profile_from_a_cluster_document_is_found(tmp_path: Path) -> None:
    spec = tmp_path / "c.yaml"
    spec.write_text('pools: [{model: m, instances: [{url: "http://h:1", name: a}], engine: {max_sequences: 77}}]\n')
    argv = ["python", "-m", "tidegate", "emulate", "-c", str(spec), "--instance", "a", "--step-tokens=500"]
    profile = emulated_profile(argv)
    assert profile is not None
    assert (profile.max_sequences, profile.step_tokens) == (77, 500)
    assert emulated_profile([*argv[:-2], "--instance", "b"]) is None
    assert emulated_profile(["python", "other"]) is None


def test_a_process_tells_command_line_and_environment(tmp_path: Path) -> None:
    with Child("sleeper", [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"],
               tmp_path / "log") as child:  # fmt: skip
        child.wait_ready(lambda: "up" in (tmp_path / "log").read_text(), 30)
        argv, env = process_of(child.pid)
    assert argv is not None
    assert argv[1] == "-c"
    assert env is not None
    assert "PATH" in env


def test_the_metrics_name_what_differs() -> None:
    checks = [
        Check(setting="--max-num-seqs", where="command line", locked="1", seen="2", verdict="drift"),
        Check(setting="driver", where="host", locked="1", seen="unknown", verdict="unknown"),
    ]
    found = [
        Verified(pool="m", instance="a", url="http://a", reached=True, checks=checks),
        Verified(pool="m", instance="b", url="http://b", reached=False, why="down"),
    ]
    page = parse(metrics(a_lock(), found, False, time.time()))
    assert page.bad_lines == 0
    assert [sample.value for sample in page.get("tidegate_lock_matches")] == [0.0], "nobody knows of b"
    assert [sample.labels["setting"] for sample in page.get("tidegate_lock_drift")] == ["--max-num-seqs"]
    assert page.sum("tidegate_lock_unknown_settings") == 1


@pytest.mark.parametrize(
    "words", [["--every", "10ms"], ["--every", "soon"], ["--instance", "nobody"], ["--pid", "99999999"]]
)
def test_wrong_options_get_one_sentence(tmp_path: Path, emulated: Emulated, words: list[str]) -> None:
    code, output = verify(tmp_path, a_lock(url=emulated.url), *words)
    assert code == 3
    assert "Traceback" not in output
    assert output.startswith("error: ")
