"""The emulated engine behind HTTP, side by side with what a real vLLM was recorded to answer."""

from __future__ import annotations

import http.client
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tidegate.testing.live import HOST
from tidegate.testing.processes import MODEL, Emulated, request
from tidegate.wire import sse

VLLM = "reference/engines/vllm"
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}
PROMPT = {"model": MODEL, "prompt": "hello there", "max_tokens": 6}


def recorded(shared_dir: Path, case: str) -> dict[str, Any]:
    answers: dict[str, Any] = json.loads((shared_dir / VLLM / "responses.json").read_text())
    found: dict[str, Any] = answers[case]
    return found


def events(body: bytes) -> list[bytes]:
    splitter = sse.SseSplitter()
    found = splitter.feed(body)
    assert splitter.pending_bytes == 0
    return found


def shape(value: object) -> object:
    """Keys and types of JSON, without the values; lists by their first item."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shape(item) for item in value[:1]]
    return type(value).__name__


def text_of(body: bytes) -> str:
    chunks = [json.loads(sse.data_of(event)) for event in events(body)[:-1]]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    return "".join(choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in choices)


@pytest.mark.parametrize(
    ("file", "path", "body"),
    [
        (
            "stream.chat.include_usage.sse.txt",
            "/v1/chat/completions",
            {**CHAT, "stream_options": {"include_usage": True}},
        ),
        ("stream.chat.no_usage.sse.txt", "/v1/chat/completions", CHAT),
        (
            "stream.chat.continuous_usage.sse.txt",
            "/v1/chat/completions",
            {**CHAT, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        ),
        (
            "stream.completions.include_usage.sse.txt",
            "/v1/completions",
            {**PROMPT, "stream_options": {"include_usage": True}},
        ),
    ],
)  # fmt: skip
def test_streams_have_the_shape_of_a_real_vllms(
    emulated: Emulated, shared_dir: Path, file: str, path: str, body: dict[str, Any]
) -> None:
    status, answer = emulated.post(path, {**body, "stream": True})
    assert status == 200
    ours, theirs = events(answer), events((shared_dir / VLLM / file).read_bytes())
    assert ours[-1] == theirs[-1] == b"data: [DONE]\n\n"
    ours_json = [json.loads(sse.data_of(event)) for event in ours[:-1]]
    theirs_json = [json.loads(sse.data_of(event)) for event in theirs[:-1]]
    tail = -2 if theirs_json[-1]["choices"] == [] else -1
    # Opening, a middle chunk, the last chunk of the text, and the usage chunk where there is one.
    for at in {0, 1, tail, -1}:
        assert shape(ours_json[at]) == shape(theirs_json[at])
        assert list(ours_json[at]) == list(theirs_json[at])
    assert ours_json[-1].get("usage", {}).get("completion_tokens") in (None, body["max_tokens"])


def test_a_whole_answer_has_the_fields_of_a_real_vllms(emulated: Emulated, shared_dir: Path) -> None:
    status, answer = emulated.post("/v1/chat/completions", CHAT)
    theirs = json.loads(recorded(shared_dir, "ok_nonstream")["body"])
    ours = json.loads(answer)
    assert status == 200
    assert shape(ours["usage"]) == shape(theirs["usage"])
    assert ours["choices"][0]["message"].keys() == theirs["choices"][0]["message"].keys()
    assert ours["choices"][0]["finish_reason"] == "length"
    assert ours.keys() <= theirs.keys()


def test_streamed_and_whole_text_are_the_same_numbered_words(emulated: Emulated) -> None:
    whole = emulated.chat(max_tokens=30)["choices"][0]["message"]["content"]
    status, streamed = emulated.post("/v1/chat/completions", {**CHAT, "max_tokens": 30, "stream": True})
    assert status == 200
    assert text_of(streamed) == whole
    assert re.findall(r" w(\d+)-", whole) == [str(i) for i in range(30)]
    assert sum(sse.first_content(event) for event in events(streamed)) == 30


def test_every_choice_and_every_prompt_is_answered(emulated: Emulated) -> None:
    status, answer = emulated.post("/v1/completions", {"prompt": ["a", "b"], "n": 2, "max_tokens": 3})
    body = json.loads(answer)
    assert status == 200
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert len({choice["text"] for choice in body["choices"]}) == 4
    assert body["usage"] == {**body["usage"], "prompt_tokens": 2, "completion_tokens": 12}
    status, streamed = emulated.post("/v1/completions", {"prompt": ["a", "b"], "n": 2, "max_tokens": 3, "stream": True})
    chunks = [json.loads(sse.data_of(event))["choices"][0] for event in events(streamed)[:-1]]
    for choice in body["choices"]:
        own = [chunk for chunk in chunks if chunk["index"] == choice["index"]]
        assert "".join(chunk["text"] for chunk in own) == choice["text"]
        assert [chunk["finish_reason"] for chunk in own] == [None, None, "length"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_the_answer_before_it(emulated: Emulated, stream: bool) -> None:
    body = {**CHAT, "max_tokens": 50, "stop": ["zzz", " w7-"], "stream": stream}
    status, answer = emulated.post("/v1/chat/completions", body)
    assert status == 200
    if stream:
        text = text_of(answer)
        last = json.loads(sse.data_of(events(answer)[-2]))["choices"][0]
    else:
        last = json.loads(answer)["choices"][0]
        text = last["message"]["content"]
        assert json.loads(answer)["usage"]["completion_tokens"] == 8
    assert re.findall(r"w(\d+)-", text) == [str(i) for i in range(7)]
    assert (last["finish_reason"], last["stop_reason"]) == ("stop", " w7-")


def test_the_tokenizer_endpoint_agrees_with_the_bill(emulated: Emulated) -> None:
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "你好, wie geht’s?"}]
    status, answer = emulated.post("/tokenize", {"model": MODEL, "messages": messages})
    tokens = json.loads(answer)
    assert (status, tokens["count"]) == (200, len(tokens["tokens"]))
    assert emulated.chat(messages=messages)["usage"]["prompt_tokens"] == tokens["count"]
    status, answer = emulated.post("/tokenize", {"prompt": "你好"})
    status, back = emulated.post("/detokenize", {"tokens": json.loads(answer)["tokens"]})
    assert (status, json.loads(back)) == (200, {"prompt": "你好"})


@pytest.mark.parametrize(
    "case", ["not_found_route", "method_not_allowed", "wrong_content_type", "load", "ping", "health"]
)
def test_other_answers_are_those_of_a_real_vllm(emulated: Emulated, shared_dir: Path, case: str) -> None:
    theirs = recorded(shared_dir, case)
    if case == "not_found_route":
        ours = emulated.get("/nope")
    elif case == "method_not_allowed":
        ours = emulated.get("/v1/chat/completions")
    elif case == "wrong_content_type":
        ours = emulated.post("/v1/chat/completions", CHAT, {"content-type": "text/plain"})
    else:
        ours = emulated.get("/" + case)
    assert ours == (theirs["status"], theirs["body"].encode())


def test_models_and_version(emulated: Emulated, shared_dir: Path) -> None:
    theirs = json.loads(recorded(shared_dir, "models")["body"])["data"][0]
    ours = json.loads(emulated.get("/v1/models")[1])["data"][0]
    assert ours.keys() == theirs.keys()
    assert (ours["id"], ours["max_model_len"]) == (MODEL, 16384)
    assert json.loads(emulated.get("/version")[1])["emulated"] is True


def test_a_request_id_becomes_the_answers_id(emulated: Emulated) -> None:
    _, answer = emulated.post("/v1/chat/completions", CHAT, {"x-request-id": "abc-123"})
    assert json.loads(answer)["id"] == "chatcmpl-abc-123"


def families(page: str) -> dict[str, tuple[str, frozenset[tuple[str, ...]]]]:
    """Metric → (type, the label names its samples have, in order)."""
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", page, re.MULTILINE))
    labels: dict[str, set[tuple[str, ...]]] = {}
    for name, inner in re.findall(r"^([a-zA-Z_:]+)\{(.*)\} \S+$", page, re.MULTILINE):
        labels.setdefault(name, set()).add(tuple(re.findall(r'(\w+)="', inner)))
    return {name: (types.get(name, ""), frozenset(labels.get(name, ()))) for name in {*types, *labels}}


def test_metrics_have_the_names_types_and_labels_of_a_real_vllms(emulated: Emulated, shared_dir: Path) -> None:
    emulated.chat()
    theirs = families((shared_dir / VLLM / "metrics.load16.eager.txt").read_text())
    status, page = emulated.get("/metrics")
    ours = families(page.decode())
    config = "vllm:cache_config_info"
    assert status == 200
    for name, found in ours.items():
        if name.startswith("vllm:") and name != config:
            assert found == theirs[name], name
    assert {name for name in theirs if name.startswith("vllm:")} <= set(ours)
    assert set(next(iter(ours[config][1]))) <= set(next(iter(theirs[config][1])))


def test_metrics_histograms_have_a_real_vllms_buckets(emulated: Emulated, shared_dir: Path) -> None:
    theirs = (shared_dir / VLLM / "metrics.load16.eager.txt").read_text()
    ours = emulated.get("/metrics")[1].decode()
    for name in ("time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds",
                 "request_queue_time_seconds", "iteration_tokens_total", "request_params_n"):  # fmt: skip
        bounds = [re.findall(rf'vllm:{name}_bucket{{.*le="([^"]+)"', page) for page in (ours, theirs)]
        assert bounds[0] == bounds[1]


def test_metrics_count_what_was_asked(emulated: Emulated) -> None:
    def counts() -> list[float | None]:
        return [emulated.metric(name) for name in (
            "vllm:generation_tokens_total", "vllm:request_success_total", "vllm:time_to_first_token_seconds_count",
            "vllm:inter_token_latency_seconds_count", "vllm:e2e_request_latency_seconds_count",
        )]  # fmt: skip

    before = counts()
    emulated.chat(max_tokens=10)
    assert [after - (b or 0) for after, b in zip(counts(), before, strict=True) if after is not None] == [
        10,
        1,
        1,
        9,
        1,
    ]
    assert emulated.metric("vllm:kv_cache_usage_perc") == 0


def test_a_repeated_prompt_is_found_in_the_prefix_cache(emulated: Emulated) -> None:
    messages = [{"role": "user", "content": "the same long beginning " * 40}]
    emulated.chat(messages=messages)
    before = emulated.metric("vllm:prefix_cache_hits_total") or 0
    prompt_tokens = emulated.chat(messages=messages)["usage"]["prompt_tokens"]
    hits = (emulated.metric("vllm:prefix_cache_hits_total") or 0) - before
    assert prompt_tokens - 16 <= hits < prompt_tokens


def test_counters_for_a_run_record(emulated: Emulated) -> None:
    before = json.loads(emulated.get("/emulated/counters")[1])
    emulated.chat(max_tokens=10)
    after = json.loads(emulated.get("/emulated/counters")[1])
    assert after["emulated"] is True
    assert after["output_tokens"] - before["output_tokens"] == 10
    assert after["steps"] - before["steps"] == 10
    assert after["model_flops"] > before["model_flops"]
    assert 0 < after["busy_s"] - before["busy_s"] < 1
    assert after["started_s"] == before["started_s"]
    assert 0 < after["kv_peak_fraction"] < 1


def test_a_client_that_stops_reading_gets_every_word_in_the_end(emulated: Emulated) -> None:
    connection = http.client.HTTPConnection(HOST, emulated.port, timeout=60)
    prompts = [f"prompt {i}" for i in range(100)]
    body = {"prompt": prompts, "max_tokens": 300, "stream": True, "ignore_eos": True}
    connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    answer = connection.getresponse()
    # 30,000 chunks are more than the sockets hold, so the engine finishes against a client that does not read.
    emulated.wait_at_rest()
    chunks = [json.loads(sse.data_of(event))["choices"] for event in events(answer.read())[:-1]]
    connection.close()
    assert len(chunks) < 100 * 300
    for index in range(len(prompts)):
        text = "".join(choice["text"] for choices in chunks for choice in choices if choice["index"] == index)
        assert re.findall(r" w(\d+)-", text) == [str(i) for i in range(300)]


def test_two_requests_on_one_connection(emulated: Emulated) -> None:
    connection = http.client.HTTPConnection(HOST, emulated.port, timeout=60)
    ids = set()
    for _ in range(2):
        connection.request("POST", "/v1/chat/completions", json.dumps({**CHAT, "stream": True}),
                           {"content-type": "application/json"})  # fmt: skip
        answer = events(connection.getresponse().read())
        ids.add(json.loads(sse.data_of(answer[0]))["id"])
        assert answer[-1] == sse.DONE_EVENT
    connection.close()
    assert len(ids) == 2


def test_refusals_do_not_reach_the_engine(emulated: Emulated) -> None:
    before = emulated.metric("tidegate_emulated_steps_total")
    assert request("POST", emulated.port, "/v1/chat/completions", b"{no")[0] == 400
    assert emulated.post("/v1/chat/completions", {**CHAT, "model": "nope"})[0] == 404
    assert emulated.metric("tidegate_emulated_steps_total") == before
