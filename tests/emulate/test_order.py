"""What the emulated engine takes and refuses, held against a real vLLM's recorded answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.twin.emulate import words
from tidegate.twin.emulate.order import Order, RefusedError, read_order
from tidegate.twin.emulate.tokenizer import encode_chat, encode_text
from tidegate.wire.openai import CHAT_PATH, COMPLETIONS_PATH

CONTEXT = 2048
MESSAGES = [{"role": "user", "content": "hello"}]


def order(path: str = CHAT_PATH, **fields: Any) -> Order:
    body = {"model": "tiny", **({"messages": MESSAGES} if path == CHAT_PATH else {"prompt": "hello"}), **fields}
    return read_order(json.dumps(body).encode(), path, "tiny", CONTEXT)


def refused(body: bytes, path: str = CHAT_PATH) -> tuple[int, dict[str, Any]]:
    with pytest.raises(RefusedError) as caught:
        read_order(body, path, "tiny", CONTEXT)
    return caught.value.status, json.loads(caught.value.body)["error"]


def with_fields(**fields: Any) -> bytes:
    return json.dumps({"model": "tiny", "messages": MESSAGES, **fields}).encode()


RECORDED = {
    "wrong_model": with_fields(model="nope"),
    "missing_messages": b'{"model":"tiny"}',
    "prompt_too_long": with_fields(messages=[{"role": "user", "content": "x" * 4 * 2045}]),
    "prompt_too_long_stream": with_fields(messages=[{"role": "user", "content": "x" * 4 * 2045}], stream=True),
    "max_tokens_too_big": with_fields(max_tokens=100000),
    "bad_temperature": with_fields(temperature=-1.0),
    "bad_top_p": with_fields(top_p=2.0),
    "max_tokens_zero": with_fields(max_tokens=0),
    "stream_options_without_stream": with_fields(stream_options={"include_usage": True}),
}


@pytest.mark.parametrize("case", RECORDED)
def test_refuses_as_the_recorded_vllm_did(shared_dir: Path, case: str) -> None:
    recorded = json.loads((shared_dir / "reference/engines/vllm/responses.json").read_text())[case]
    status, error = refused(RECORDED[case])
    expected = json.loads(recorded["body"])["error"]
    assert status == recorded["status"]
    if case == "missing_messages":
        error["message"] = expected["message"] = ""
    assert error == expected


@pytest.mark.parametrize("case", ["bad_json", "max_tokens_string"])
def test_a_body_that_does_not_validate_names_the_place(shared_dir: Path, case: str) -> None:
    recorded = json.loads((shared_dir / "reference/engines/vllm/responses.json").read_text())[case]
    body = b"{no" if case == "bad_json" else with_fields(max_tokens="lots")
    status, error = refused(body)
    expected = json.loads(recorded["body"])["error"]
    assert (status, error["type"], error["code"]) == (recorded["status"], expected["type"], expected["code"])
    assert error["param"].split(".")[:2] == expected["param"].split(".")[:2] or case == "bad_json"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"max_tokens": 8, "min_tokens": 9}, "min_tokens"),
        ({"min_tokens": 10**30}, "min_tokens"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages.0.content"),
        ({"logprobs": True}, "logprobs"),
        ({"echo": True}, "echo"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"max_tokens": 2046}, "input_tokens"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "add_generation_prompt"),
    ],
)
def test_impossible_and_unsupported_values_are_refused_by_name(fields: dict[str, Any], param: str) -> None:
    status, error = refused(with_fields(**fields))
    assert (status, error["param"], error["type"]) == (400, param, "BadRequestError")


@pytest.mark.parametrize("prompt", [[], [[]], "", [""], [1, "a"], [True], [[1], "a"]])
def test_prompts_that_are_none_are_refused(prompt: Any) -> None:
    assert refused(json.dumps({"prompt": prompt}).encode(), COMPLETIONS_PATH)[0] == 400


def test_completions_take_text_ids_and_lists_of_either() -> None:
    assert order(COMPLETIONS_PATH, prompt="abcdefgh").prompts == [b"abcdefgh"]
    assert order(COMPLETIONS_PATH, prompt=[1, 2]).prompts == [b"\x01\0\0\0\x02\0\0\0"]
    assert order(COMPLETIONS_PATH, prompt=["a", "b"]).prompts == [encode_text("a"), encode_text("b")]
    assert order(COMPLETIONS_PATH, prompt=[[1], [2]]).prompts == [b"\x01\0\0\0", b"\x02\0\0\0"]


def test_unknown_fields_and_a_missing_model_are_taken() -> None:
    assert read_order(json.dumps({"messages": MESSAGES, "seed": 1, "zzz": {}}).encode(), CHAT_PATH, "tiny", CONTEXT)


def test_the_answer_is_as_long_as_documented() -> None:
    seed = words.answer_seed(order().hashes[0], 0)
    natural = words.natural_tokens(seed)
    assert order(max_tokens=5, ignore_eos=True).answer_tokens(seed) == (5, "length")
    assert order(max_tokens=2000, ignore_eos=True).answer_tokens(seed) == (2000, "length")
    assert order(max_tokens=5).answer_tokens(seed) == (5, "length")
    assert order(max_tokens=2000).answer_tokens(seed) == (natural, "stop")
    assert order().answer_tokens(seed) == (natural, "stop")
    assert order(max_tokens=2000, min_tokens=1500).answer_tokens(seed) == (1500, "stop")
    assert order(max_tokens=7, max_completion_tokens=9).answer_tokens(seed) == (9, "length")
    assert order(COMPLETIONS_PATH).limit_tokens == 16


def test_a_continued_message_is_the_same_answer_from_its_next_word() -> None:
    whole = order()
    seed = words.answer_seed(whole.hashes[0], 0)
    said = words.text(seed, 0, 7).decode()
    messages = [*MESSAGES, {"role": "assistant", "content": said}]
    continued = order(messages=messages, continue_final_message=True, add_generation_prompt=False)
    assert (continued.hashes, continued.first_word) == (whole.hashes, 7)
    assert len(continued.prompts[0]) > len(encode_chat(MESSAGES))
    assert continued.answer_tokens(seed)[0] == whole.answer_tokens(seed)[0] - 7


def test_a_message_to_continue_that_was_never_ours_is_continued_from_the_start() -> None:
    messages = [*MESSAGES, {"role": "assistant", "content": " w" + "9" * 5000 + "-a"}]
    assert order(messages=messages, continue_final_message=True, add_generation_prompt=False).first_word == 0


@given(st.binary(max_size=80), st.sampled_from([CHAT_PATH, COMPLETIONS_PATH]))
def test_any_bytes_are_an_order_or_a_refusal(body: bytes, path: str) -> None:
    try:
        read_order(body, path, "tiny", CONTEXT)
    except RefusedError as exc:
        json.loads(exc.body)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
NAMES = ("messages", "prompt", "stream", "max_tokens", "n", "stop", "stream_options", "temperature", "logprobs",
         "continue_final_message", "min_tokens", "response_format", "echo")  # fmt: skip


@given(st.dictionaries(st.sampled_from(NAMES), json_values), st.sampled_from([CHAT_PATH, COMPLETIONS_PATH]))
def test_any_json_is_an_order_or_a_refusal(fields: dict[str, object], path: str) -> None:
    try:
        found = read_order(json.dumps(fields).encode(), path, "tiny", CONTEXT)
    except RefusedError as exc:
        json.loads(exc.body)
    else:
        assert 1 <= found.limit_tokens <= CONTEXT
