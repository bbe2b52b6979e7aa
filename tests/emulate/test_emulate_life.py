"""The emulated engine as a process: loading, leaving clients, signals, ports, profiles."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tidegate.errors import ExitCode
from tidegate.node.process import answers
from tidegate.testing.live import HOST, free_port, wait_until
from tidegate.testing.processes import MODEL, SMALL, Emulated, Tidegate
from tidegate.wire import sse

LONG = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4000, "ignore_eos": True}


@contextmanager
def asked(engine: Emulated, **fields: Any) -> Iterator[http.client.HTTPConnection]:
    """A connection on which a completion was asked for."""
    connection = http.client.HTTPConnection(HOST, engine.port, timeout=60)
    connection.request(
        "POST", "/v1/chat/completions", json.dumps({**LONG, **fields}), {"content-type": "application/json"}
    )
    try:
        yield connection
    finally:
        connection.close()


def wait_running(engine: Emulated, requests: int) -> None:
    wait_until(f"{requests} requests in the engine", lambda: engine.running() == requests)


def refuses(engine: Emulated) -> bool:
    return engine.post("/v1/chat/completions", {**LONG, "max_tokens": 1})[0] == 500


def last_chunks(body: bytes) -> list[Any]:
    """The JSON of the last two events before `[DONE]`, which must end the stream."""
    events = sse.SseSplitter().feed(body)
    assert events[-1] == sse.DONE_EVENT
    return [json.loads(sse.data_of(event)) for event in events[-3:-1]]


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_blocks_at_once(emulated: Emulated, stream: bool) -> None:
    with asked(emulated, stream=stream):
        wait_running(emulated, 1)
        wait_until("KV blocks in use", lambda: (emulated.metric("vllm:kv_cache_usage_perc") or 0) > 0)
    # The answer would have taken another 20 s.
    emulated.wait_at_rest(patience_s=10)
    assert emulated.metric("vllm:kv_cache_usage_perc") == 0


def test_a_client_that_leaves_while_it_waits_is_forgotten(tmp_path: Path) -> None:
    with Emulated(tmp_path / "log", "--max-sequences", "1", "--step-tokens", "512") as engine:
        with asked(engine, stream=True):
            wait_until("the first runs", lambda: engine.metric("vllm:num_requests_running") == 1)
            with asked(engine, stream=True):
                wait_until("the second waits", lambda: engine.metric("vllm:num_requests_waiting") == 1)
            wait_until("only the first is left", lambda: engine.metric("vllm:num_requests_waiting") == 0)
            assert engine.metric("vllm:num_requests_running") == 1
        engine.wait_at_rest()


def test_sigterm_ends_streams_with_abort_as_vllm_does(tmp_path: Path) -> None:
    with Emulated(tmp_path / "log") as engine:
        usage = {"stream_options": {"include_usage": True}}
        with asked(engine, stream=True, **usage) as one, asked(engine, stream=False) as other:
            wait_running(engine, 2)
            wait_until("tokens", lambda: (engine.metric("vllm:generation_tokens_total") or 0) > 10)
            engine.signal(signal.SIGTERM)
            streamed, whole = one.getresponse(), other.getresponse()
            last, usage_chunk = last_chunks(streamed.read())
            assert last["choices"][0]["finish_reason"] == "abort"
            assert 1 <= usage_chunk["usage"]["completion_tokens"] < 4000
            body = json.loads(whole.read())
            assert (whole.status, body["choices"][0]["finish_reason"]) == (200, "abort")
            words = re.findall(r" w(\d+)-", body["choices"][0]["message"]["content"])
            assert words == [str(i) for i in range(body["usage"]["completion_tokens"])]
        assert engine.wait_exit() == ExitCode.OK
        assert not answers(HOST, engine.port)


def test_shutdown_timeout_lets_streams_finish_and_refuses_new_work(tmp_path: Path) -> None:
    with Emulated(tmp_path / "log", "--shutdown-timeout", "60") as engine:
        with asked(engine, stream=True, max_tokens=300) as connection:
            wait_running(engine, 1)
            engine.signal(signal.SIGTERM)
            wait_until("new work refused", lambda: refuses(engine))
            assert answers(HOST, engine.port)
            _, last = last_chunks(connection.getresponse().read())
            assert last["choices"][0]["finish_reason"] == "length"
        assert engine.wait_exit() == ExitCode.OK


def test_what_is_left_at_the_shutdown_timeout_is_aborted(tmp_path: Path) -> None:
    with Emulated(tmp_path / "log", "--shutdown-timeout", "0.3") as engine:
        with asked(engine, stream=True) as connection:
            wait_running(engine, 1)
            engine.signal(signal.SIGTERM)
            _, last = last_chunks(connection.getresponse().read())
            assert last["choices"][0]["finish_reason"] == "abort"
        assert engine.wait_exit() == ExitCode.OK


def test_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    with Emulated(tmp_path / "log", "--shutdown-timeout", "600") as engine, asked(engine, stream=True):
        wait_running(engine, 1)
        engine.signal(signal.SIGTERM)
        wait_until("it is stopping", lambda: refuses(engine))
        engine.signal(signal.SIGTERM)
        assert engine.wait_exit() == ExitCode.OK


def test_loading_refuses_connections_and_can_be_ended(tmp_path: Path) -> None:
    port = free_port()
    arguments = ["emulate", "--port", str(port), *SMALL, "--startup-s", "600"]
    with Tidegate(arguments, tmp_path / "log") as engine:
        # The port is bound but does not listen: nobody else gets it, nobody is served.
        wait_until("the port is held", lambda: not _can_bind(port))
        assert not answers(HOST, port)
        engine.signal(signal.SIGTERM)
        assert engine.wait_exit() == ExitCode.OK
    assert "ready" not in engine.output()


def _can_bind(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def test_a_port_in_use_is_one_sentence_and_exit_code_4(emulated: Emulated, tmp_path: Path) -> None:
    for number, extra in enumerate(([], ["--startup-s", "5"])):
        arguments = ["emulate", "--port", str(emulated.port), *SMALL, *extra]
        with Tidegate(arguments, tmp_path / f"log{number}") as second:
            assert second.wait_exit() == ExitCode.UNAVAILABLE
        lines = second.output().splitlines()
        assert str(emulated.port) in lines[0]
        assert len(lines) == 2
        assert lines[1].startswith("hint: ")


def test_ctrl_c_while_loading_or_idle_is_clean(tmp_path: Path) -> None:
    port = free_port()
    arguments = ["emulate", "--port", str(port), *SMALL, "--startup-s", "600"]
    with Tidegate(arguments, tmp_path / "loading") as loading:
        wait_until("the port is held", lambda: not _can_bind(port))
        loading.signal(signal.SIGINT)
        assert loading.wait_exit() == ExitCode.INTERRUPTED
    assert loading.output() == ""
    with Emulated(tmp_path / "idle") as idle:
        idle.signal(signal.SIGINT)
        assert idle.wait_exit() == ExitCode.INTERRUPTED
    assert len(idle.output().splitlines()) == 1


def test_ctrl_c_under_streams_ends_them(tmp_path: Path) -> None:
    with Emulated(tmp_path / "log") as engine:
        with asked(engine, stream=True) as connection:
            wait_running(engine, 1)
            engine.signal(signal.SIGINT)
            assert last_chunks(connection.getresponse().read())[-1]["choices"][0]["finish_reason"] == "abort"
        assert engine.wait_exit() == ExitCode.INTERRUPTED
    assert "Traceback" not in engine.output()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--shape", "no-such-model"], ExitCode.BAD_INPUT, "no-such-model"),
        (["--weights", "int3"], ExitCode.BAD_INPUT, "int3"),
        (["--step-tokens", "16"], ExitCode.BAD_INPUT, "step_tokens"),
        (["--memory-fraction", "0.05"], ExitCode.BAD_INPUT, "KV cache"),
        (["--memory-fraction", "2"], ExitCode.BAD_INPUT, "--memory-fraction 2.0 must be at most 1"),
        (["--step-tokens", "lots"], ExitCode.USAGE, "lots"),
        (["--port", "99999"], ExitCode.USAGE, "65535"),
        (["--instance", "a"], ExitCode.BAD_INPUT, "-c"),
        (["-c", "missing.yaml"], ExitCode.BAD_INPUT, "missing.yaml"),
        (["--host", "no.such.host.invalid"], ExitCode.UNAVAILABLE, "no.such.host.invalid"),
    ],
)
def test_wrong_options_are_told_and_nothing_starts(
    tmp_path: Path, arguments: list[str], code: ExitCode, words: str
) -> None:
    with Tidegate(["emulate", "--port", "0", *arguments], tmp_path / "log") as process:
        assert process.wait_exit() == code
    assert words in process.output()
    assert "Traceback" not in process.output()


def test_an_instance_of_a_cluster_file(tmp_path: Path) -> None:
    port = free_port()
    config = tmp_path / "tidegate.yaml"
    config.write_text(f"""
pools:
  - model: {MODEL}
    instances:
      - {{url: "http://127.0.0.1:1", name: other}}
      - {{url: "http://127.0.0.1:{port}", name: mine}}
    engine: {{shape: llama-3.1-8b, gpus: 1, weights: bf16, kv_cache: bf16, context_tokens: 4k, step_tokens: 2k}}
""")
    arguments = ("-c", str(config), "--instance", "mine", "--max-sequences", "64")
    with Emulated(tmp_path / "log", *arguments, port=port, profile=()) as engine:
        assert engine.chat()["model"] == MODEL
        assert json.loads(engine.get("/v1/models")[1])["data"][0]["max_model_len"] == 4000
        assert json.loads(engine.get("/emulated/counters")[1])["name"] == "mine"
    for wanted, words in (([], "other, mine"), (["--instance", "third"], "third")):
        with Tidegate(["emulate", "-c", str(config), *wanted], tmp_path / "log2") as process:
            assert process.wait_exit() == ExitCode.BAD_INPUT
        assert words in process.output()


def test_want_of_kv_blocks_preempts_and_loses_nothing(tmp_path: Path) -> None:
    options = (
        "--memory-fraction",
        "0.26",
        "--context-tokens",
        "4096",
        "--max-sequences",
        "256",
        "--step-tokens",
        "2048",
    )
    with Emulated(tmp_path / "log", *options) as engine:
        blocks = json.loads(engine.get("/emulated/counters")[1])["capacity_blocks"]
        prompts: list[str] = [f"{i:4}" * (16 * (blocks // 20)) for i in range(18)]
        body: dict[str, Any] = {"prompt": prompts, "max_tokens": 16 * (blocks // 60), "ignore_eos": True}
        status, answer = engine.post("/v1/completions", body)
        assert status == 200
        assert (engine.metric("vllm:num_preemptions_total") or 0) > 0
        tokens = len(prompts) * body["max_tokens"]
        assert engine.metric("vllm:generation_tokens_total") == tokens
        assert engine.metric("vllm:inter_token_latency_seconds_count") == tokens - len(prompts)
        decode_s = engine.metric("vllm:request_decode_time_seconds_sum")
        # Gaps torn open by a preemption are whole: together they span each answer from first token to last.
        assert engine.metric("vllm:inter_token_latency_seconds_sum") == pytest.approx(decode_s, rel=0.02)
        for choice in json.loads(answer)["choices"]:
            assert re.findall(r" w(\d+)-", choice["text"]) == [str(i) for i in range(body["max_tokens"])]
        assert engine.metric("vllm:kv_cache_usage_perc") == 0


def test_time_passes_as_the_model_says(emulated: Emulated) -> None:
    """Coarse on purpose: the wall clock may be late, never early by more than its timer's millisecond a step."""
    before = json.loads(emulated.get("/emulated/counters")[1])["busy_s"]
    began = time.monotonic()
    emulated.chat(max_tokens=100, ignore_eos=True)
    took_s = time.monotonic() - began
    modelled_s = json.loads(emulated.get("/emulated/counters")[1])["busy_s"] - before
    assert took_s > modelled_s - 0.002


def test_an_emulation_that_fell_behind_says_so_and_loses_nothing(tmp_path: Path) -> None:
    with Emulated(tmp_path / "log") as engine:
        with asked(engine, stream=True, max_tokens=200) as connection:
            wait_running(engine, 1)
            engine.signal(signal.SIGSTOP)
            # As long as dozens of steps; a slower machine only makes it more.
            time.sleep(0.4)
            engine.signal(signal.SIGCONT)
            events = sse.SseSplitter().feed(connection.getresponse().read())
        text = b"".join(events).decode()
        assert re.findall(r" w(\d+)-", text) == [str(i) for i in range(200)]
        counters = json.loads(engine.get("/emulated/counters")[1])
        assert counters["kept_pace"] is False
        assert counters["longest_lag_s"] > 0.3
        assert engine.metric("tidegate_emulated_kept_pace") == 0
        engine.signal(signal.SIGTERM)
        assert engine.wait_exit() == ExitCode.OK
    assert "did not keep pace" in engine.output().splitlines()[-1]
