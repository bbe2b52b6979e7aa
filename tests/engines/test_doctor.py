"""Symptoms of real logs and pages, and of the public reports, are named; healthy ones are not."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.engines.doctor import Confidence, Diagnosis, Examination
from tidegate.engines.doctor.diagnosis import symptoms
from tidegate.engines.doctor.pages import quantile
from tidegate.wire.prometheus import parse

READY = "(APIServer pid=1) INFO:     Application startup complete.\n"


def of_log(text: str | bytes, name: str = "log") -> list[Diagnosis]:
    examination = Examination()
    scan = examination.log(name)
    scan.feed(text if isinstance(text, bytes) else text.encode())
    scan.close()
    return examination.diagnoses()


def of_page(*texts: str) -> list[Diagnosis]:
    examination = Examination()
    for index, text in enumerate(texts):
        examination.page(f"page{index}", text)
    return examination.diagnoses()


def of_config(text: str, name: str = "rules.yaml") -> list[Diagnosis]:
    examination = Examination()
    examination.config(name, text)
    return examination.diagnoses()


def only(found: list[Diagnosis], wanted: str) -> Diagnosis:
    hits = [one for one in found if one.id == wanted]
    assert len(hits) == 1, [one.id for one in found]
    return hits[0]


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.15 GiB.", "out-of-memory"),
        (("RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests. Please try"
         " lowering `max_num_seqs`"), "default-sequences"),
        ("ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`",
         "no-memory-for-kv"),
        ("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", "no-memory-for-kv"),
        (("ValueError: To serve at least one request with the models's max seq len (131072), (16.00 GiB KV cache is"
         " needed, which is larger than the available KV cache memory (5.92 GiB)."), "context-exceeds-kv"),
        (("ValueError: Free memory on device cuda:0 (3.1/79.2 GiB) on startup is less than desired GPU memory"
         " utilization (0.92, 72.9 GiB)."), "gpu-occupied"),
        ("vllm serve: error: unrecognized arguments: --disable-log-requests", "bad-option"),
        ("launch_server: error: unrecognized arguments: --enable-radix-cache", "bad-option"),
        ("WARNING Unknown vLLM environment variable detected: VLLM_ATTENTION_BACKEND", "unknown-variable"),
        ("RuntimeError: NCCL error: unhandled system error", "nccl-failed"),
        (("[rank0]:[E ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL("
         "SeqNum=1, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600004 milliseconds"), "collective-timeout"),
        (("ValueError: User-specified max_model_len (65536) is greater than the derived max_model_len"
         " (max_position_embeddings=8192). This may lead to incorrect model outputs"), "rope-overflow"),
        ("triton.compiler.errors.CompilationError: type fp8e4nv not supported in this architecture", "fp8-unsupported"),
        ("ValueError: Total number of attention heads (64) must be divisible by tensor parallel size (3).",
         "heads-not-divisible"),
        ("OSError: [Errno 98] Address already in use", "port-taken"),
        ("RuntimeError: Cannot find any model weights with `/models/x`", "weights-missing"),
        ("safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge", "weights-broken"),
        ("huggingface_hub.errors.GatedRepoError: 401 Client Error.", "weights-forbidden"),
        ("RuntimeError: unable to open shared memory object </torch_1_2> in read-write mode", "shared-memory"),
        ("kernel: NVRM: Xid (PCI:0000:4b:00): 79, GPU has fallen off the bus.", "gpu-fault"),
        ("kernel: Out of memory: Killed process 4242 (python3)", "host-out-of-memory"),
        ("RuntimeError: cannot schedule new futures after shutdown", "requests-while-draining"),
        ("Health check failed. Server couldn't get a response from detokenizer for last 20 seconds.",
         "health-behind-prefill"),
        ("RuntimeError: The NVIDIA driver on your system is too old (found version 12020).", "driver-too-old"),
    ],
)  # fmt: skip
def test_a_line_names_its_cause(line: str, wanted: str) -> None:
    found = only(of_log(f"starting\n{line}\n{READY}"), wanted)
    assert found.evidence[0].line == 2
    assert found.evidence[0].text in line
    assert found.cause
    assert found.fix


def test_every_symptom_can_be_told_from_a_line_that_holds_its_trigger() -> None:
    unseen = {one.id for one in symptoms()}
    for symptom in symptoms():
        for trigger in symptom.triggers:
            extra = " exceed No space left NaN" if symptom.pattern else ""
            unseen -= {one.id for one in of_log(f"{READY}x {trigger}{extra} y\n")}
    assert unseen == set()


def test_fragmentation_is_told_apart_from_plain_shortage() -> None:
    line = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.15 GiB. GPU 0 has a total capacity of"
        " 79.18 GiB of which 1.06 GiB is free. Of the allocated memory 70.10 GiB is allocated by PyTorch, and {} is"
        " reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting ...\n"
    )
    found = of_log(line.format("6.20 GiB"))
    assert "6.2 GiB were reserved" in only(found, "memory-fragmented").cause
    assert only(found, "out-of-memory")
    assert [one.id for one in of_log(line.format("120.50 MiB"))] == ["out-of-memory"]


def test_nodes_with_two_nccl_versions_are_found_over_their_logs() -> None:
    examination = Examination()
    for node, version in (("node1.log", "2.21.5"), ("node2.log", "2.27.3")):
        scan = examination.log(node)
        scan.feed(f"{node}:12:34 [0] NCCL INFO NCCL version {version}+cuda12.4\n".encode())
        scan.close()
    found = only(examination.diagnoses(), "nccl-versions-differ")
    assert {one.source for one in found.evidence} == {"node1.log", "node2.log"}
    assert not of_log("NCCL version 2.27.3+cuda12.9\nNCCL version 2.27.3+cuda12.9\n")


def test_silent_workers_mean_little_while_the_engine_starts() -> None:
    line = "INFO [shm_broadcast.py:466] No available shared memory broadcast block found in 60 seconds.\n"
    assert only(of_log(line + READY), "workers-silent").confidence is Confidence.LOW
    assert only(of_log(READY + line), "workers-silent").confidence is Confidence.MEDIUM


def test_causes_come_before_what_follows_from_them() -> None:
    text = "ERROR EngineCore encountered a fatal error.\ntorch.OutOfMemoryError: CUDA out of memory. Tried\n"
    assert [one.id for one in of_log(text)] == ["out-of-memory", "engine-dead"]


def test_the_real_vllm_log_of_an_overload(shared_dir: Path) -> None:
    found = of_log((shared_dir / "measured/h200/vllm-0.24-default.log").read_bytes())
    assert {one.id for one in found} == {"kv-cache-full", "queue-in-engine", "open-files", "streams-cut-at-stop"}
    assert "99.6%" in only(found, "kv-cache-full").evidence[0].text
    assert "227 requests waited beside 259 running" in only(found, "queue-in-engine").cause


def test_the_real_sglang_log_of_an_overload(shared_dir: Path) -> None:
    """README of the run: decode stood still from 17 to 38 s, 101 prefill batches in 21 s; three retractions."""
    found = of_log((shared_dir / "measured/h200_sglang/sglang-0.5.17-default.log").read_bytes())
    assert {one.id for one in found} == {"kv-cache-full", "prefill-starves-decode", "prompt-too-long"}
    assert "103 prefill batches in 21 s" in only(found, "prefill-starves-decode").cause
    assert only(found, "kv-cache-full").count == 3


def test_the_real_log_of_a_token_id_that_killed_a_server(shared_dir: Path) -> None:
    found = of_log((shared_dir / "measured/h200_sglang/crash-token-id.log").read_bytes())
    assert [one.id for one in found] == ["token-outside-vocabulary", "engine-dead"]


def test_the_real_log_of_a_stop_that_hung(recorded: Path) -> None:
    found = of_log((recorded / "vllm/sigterm-abort-hang.server.log").read_bytes())
    assert [one.id for one in found] == ["streams-cut-at-stop", "stop-waits-for-clients"]


def test_real_pages(recorded: Path, shared_dir: Path) -> None:
    h200 = shared_dir / "measured" / "h200"
    assert of_page((h200 / "metrics-idle-default.txt").read_text()) == []
    assert of_page((recorded / "sglang/run-0.5.17/metrics.idle.txt").read_text()) == []
    full = only(of_page((recorded / "vllm/metrics.kv_exhausted.txt").read_text()), "kv-cache-full")
    assert "KV usage 1.000" in full.evidence[0].text
    load = of_page((h200 / "metrics-load-default.txt").read_text())
    assert "162 running, 107 waiting" in only(load, "queue-in-engine").evidence[0].text
    jitter = only(of_page((h200 / "metrics-after-default.txt").read_text()), "latency-jitter")
    assert "50 ms at P50, 300 ms at P99" in jitter.evidence[0].text


def page(running: int, waiting: int, tokens: int) -> str:
    return (
        f'vllm:num_requests_running{{engine="0"}} {running}\nvllm:num_requests_waiting{{engine="0"}} {waiting}\n'
        f'vllm:generation_tokens_total{{engine="0"}} {tokens}\nvllm:prompt_tokens_total{{engine="0"}} 7\n'
    )


def test_no_progress_needs_pending_work_and_two_equal_pages() -> None:
    """gonka-ai/gonka#1421: health says 200 while 0 run, 3 wait and no token comes."""
    assert [one.id for one in of_page(page(0, 3, 100))] == ["scheduler-frozen"]
    assert only(of_page(page(4, 3, 100), page(4, 3, 100)), "no-progress").confidence is Confidence.HIGH
    assert of_page(page(4, 3, 100), page(4, 3, 101)) == []
    assert of_page(page(0, 0, 100), page(0, 0, 100)) == []


def test_an_absent_metric_is_not_taken_for_zero() -> None:
    assert of_page('vllm:num_requests_waiting{engine="0"} 3\n') == []
    assert only(of_page("python_info 1\n"), "no-engine-metrics")


def test_dashboards_that_ask_for_metrics_of_old_are_found() -> None:
    """kubernetes-sigs/gateway-api-inference-extension#1905."""
    text = """\
panels:
  - expr: sum(vllm:gpu_cache_usage_perc)
  - expr: histogram_quantile(0.99, rate(vllm:time_per_output_token_seconds_bucket[1m]))
  - expr: vllm:gpu_cache_usage_factor > 0.9
  - expr: avg(vllm:kv_cache_usage_perc) and rate(vllm:generation_tokens_total[1m]) and sglang:token_usage
  - expr: sum by (pod) (sglang:token_usage)
"""
    found = of_config(text)
    renamed = {one.evidence[0].line: one.fix for one in found if one.id == "metric-renamed"}
    assert renamed == {
        2: ("ask for vllm:kv_cache_usage_perc",),
        3: ("ask for vllm:inter_token_latency_seconds",),
        4: ("ask for vllm:kv_cache_usage_perc",),
    }
    assert [one.evidence[0].line for one in found if one.id == "fractions-summed"] == [2, 6]


def test_launch_scripts_go_through_lint() -> None:
    found = of_config("set -e\nvllm serve m --swap-space 4 --shutdown-timeout 30\n", "launch.sh")
    assert [one.id for one in found] == ["lint:option-removed"]
    assert found[0].evidence[0].line == 2


LOG = (
    f"one\ntorch.OutOfMemoryError: CUDA out of memory. Tried\n{READY}é\nerror: unrecognized arguments: --x\r\n"
    "INFO GPU KV cache size\nRunning: 9 reqs, Waiting: 99 reqs, GPU KV cache usage: 99.0%, x\n"
    "last Address already in use"
).encode()


@given(st.lists(st.integers(0, len(LOG)), max_size=12))
def test_any_split_of_a_log_gives_the_same(cuts: list[int]) -> None:
    examination = Examination()
    scan = examination.log("log")
    places = [0, *sorted(cuts), len(LOG)]
    for start, end in itertools.pairwise(places):
        scan.feed(LOG[start:end])
    scan.close()
    assert examination.diagnoses() == of_log(LOG)
    assert len(examination.diagnoses()) == 5


@given(st.binary(max_size=400))
def test_any_bytes_are_a_log(data: bytes) -> None:
    for one in of_log(data + b"\nCUDA out of memory " + data):
        assert all(evidence.text.isprintable() for evidence in one.evidence)


@pytest.mark.parametrize(
    "block", [b"Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 1.0%\n" * 500, b"\0" * 2**18]
)
def test_memory_does_not_grow_with_the_log(block: bytes) -> None:
    """64 blocks, lines that all match, and one line without an end: the peak stays at a few blocks."""
    examination = Examination()
    scan = examination.log("log")
    scan.feed(block)
    tracemalloc.start()
    for _ in range(64):
        scan.feed(block)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    scan.close()
    assert peak < 8 * 2**20


def test_quantiles_of_nothing_are_unknown() -> None:
    assert quantile(parse(""), "x", 0.5) is None
    assert quantile(parse('x_bucket{le="+Inf"} 0\n'), "x", 0.5) is None
    assert quantile(parse('x_bucket{le="1"} 5\nx_bucket{le="2"} 10\nx_bucket{le="+Inf"} 10\n'), "x", 0.5) == 1.0


def run(*words: str, text: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    line = [sys.executable, "-m", "tidegate", "doctor", *words]
    return subprocess.run(line, input=text, capture_output=True, timeout=60, check=False)


def test_the_command_tells_files_apart(tmp_path: Path, recorded: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text("vllm serve: error: unrecognized arguments: --swap-space 4\n")
    script = tmp_path / "launch.sh"
    script.write_text("vllm serve m --swap-space 4\n")
    page = recorded / "vllm/metrics.kv_exhausted.txt"
    done = run(str(log), str(script), str(page), "--json")
    assert done.returncode == 1
    found = {one["id"] for one in json.loads(done.stdout)}
    assert {"bad-option", "lint:option-removed", "kv-cache-full"} <= found
    plain = run(str(log)).stdout.decode()
    assert re.search(r"evidence +\S+engine\.log:1: vllm serve: error", plain)
    assert "try       tidegate lint SCRIPT --fix" in plain
    done = run("-", text=b"all is well\n")
    assert (done.returncode, done.stdout) == (0, b"nothing found in 1 file\n")


def test_the_command_with_bad_input(tmp_path: Path) -> None:
    assert run().returncode == 3
    done = run(str(tmp_path / "none.log"))
    assert done.returncode == 3
    assert b"cannot be read" in done.stderr
    empty = tmp_path / "page"
    empty.write_text("nothing\n")
    assert run("--metrics", str(empty)).returncode == 3
    assert run(str(tmp_path)).returncode == 3
