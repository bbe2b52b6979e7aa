"""Request bodies: what is read, and that everything wrong ends in one BadBody."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.wire.openai import (
    CHAT_PATH,
    COMPLETIONS_PATH,
    BadBody,
    RequestBody,
    decode_request,
    error_body,
)

CHAT = b'{"model":"m","messages":[{"role":"user","content":"hi"}]%s}'


def chat(extra: bytes = b"") -> RequestBody:
    return decode_request(CHAT % extra, CHAT_PATH)


def refusal(body: bytes, endpoint: str = CHAT_PATH) -> BadBody:
    with pytest.raises(BadBody) as caught:
        decode_request(body, endpoint)
    return caught.value


def test_reads_what_admission_needs_and_leaves_the_messages_raw() -> None:
    body = chat(
        b',"stream":true,"max_tokens":7,"max_completion_tokens":9,"n":2,"stop":"end","priority":-3,"user":"u",'
        b'"stream_options":{"include_usage":true,"other":1},"temperature":0.5,"tools":[{}]'
    )
    assert (body.model, body.stream, body.output_limit, body.n, body.priority, body.user) == ("m", True, 9, 2, -3, "u")
    assert body.stop == ["end"]
    assert body.include_usage
    assert body.messages is not None
    assert bytes(body.messages) == b'[{"role":"user","content":"hi"}]'
    assert body.prompt_bytes == len(b'[{"role":"user","content":"hi"}]')


def test_null_means_not_given() -> None:
    body = chat(b',"stream":null,"max_tokens":null,"n":null,"stop":null,"stream_options":null,"priority":null')
    assert (body.stream, body.output_limit, body.n, body.stop, body.include_usage) == (False, -1, 1, [], False)


def test_completions_take_text_and_token_ids() -> None:
    assert decode_request(b'{"model":"m","prompt":"abc"}', COMPLETIONS_PATH).prompt_bytes == 5
    assert decode_request(b'{"model":"m","prompt":[1,2]}', COMPLETIONS_PATH).prompt_bytes == 5


def test_other_endpoints_need_only_a_model() -> None:
    assert decode_request(b'{"model":"m","input":"x"}', "/v1/embeddings").model == "m"
    assert refusal(b'{"input":"x"}', "/v1/embeddings").param == "model"


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        (b"", None, "invalid_json"),
        (b"   ", None, "invalid_json"),
        (b"[]", None, "invalid_json"),
        (b"[" * 100_000, None, "invalid_json"),
        (b'"text"', None, "invalid_json"),
        (b"null", None, "invalid_json"),
        (b"{no", None, "invalid_json"),
        (b'{"model":"m"', None, "invalid_json"),
        (b'{"model":"m"} trailing', None, "invalid_json"),
        (b'{"model":"m","messages":[{"content":"\xff"}]}', None, "invalid_json"),
        (b'{"model":"m","messages":' + b'[{"a":' * 50_000, None, "invalid_json"),
        (b'{"model":"m","messages":[NaN]}', None, "invalid_json"),
        (b'\xef\xbb\xbf{"model":"m"}', None, "invalid_json"),
        (b'{"messages":[1]}', "model", "missing_field"),
        (b'{"model":null,"messages":[1]}', "model", "missing_field"),
        (b'{"model":3,"messages":[1]}', "model", "invalid_type"),
        (b'{"model":"","messages":[1]}', "model", "invalid_value"),
        (b'{"model":" ","messages":[1]}', "model", "invalid_value"),
        (b'{"model":"' + b"m" * 600 + b'","messages":[1]}', "model", "invalid_value"),
        (b'{"model":"m"}', "messages", "missing_field"),
        (b'{"model":"m","messages":null}', "messages", "missing_field"),
        (b'{"model":"m","messages":[ ]}', "messages", "invalid_type"),
        (b'{"model":"m","messages":"hi"}', "messages", "invalid_type"),
        (CHAT % b',"model":"other"', "model", "duplicate_field"),
        (CHAT % b',"max_tokens":1,"max\\u005ftokens":99', "max_tokens", "duplicate_field"),
        (CHAT % b',"stream":"yes"', "stream", "invalid_type"),
        (CHAT % b',"stream":1', "stream", "invalid_type"),
        (CHAT % b',"max_tokens":"lots"', "max_tokens", "invalid_type"),
        (CHAT % b',"max_tokens":1.5', "max_tokens", "invalid_type"),
        (CHAT % b',"max_tokens":true', "max_tokens", "invalid_type"),
        (CHAT % b',"max_tokens":0', "max_tokens", "invalid_value"),
        (CHAT % b',"max_tokens":-1', "max_tokens", "invalid_value"),
        (CHAT % b',"max_tokens":99999999999999999999999', "max_tokens", "invalid_value"),
        (CHAT % b',"max_completion_tokens":0', "max_completion_tokens", "invalid_value"),
        (CHAT % b',"n":0', "n", "invalid_value"),
        (CHAT % b',"n":1000000', "n", "invalid_value"),
        (CHAT % b',"stop":7', "stop", "invalid_type"),
        (CHAT % b',"stop":[7]', "stop", "invalid_type"),
        (CHAT % b',"user":{}', "user", "invalid_type"),
        (CHAT % b',"priority":"high"', "priority", "invalid_type"),
        (CHAT % b',"stream_options":{"include_usage":"yes"}', "stream_options", "invalid_type"),
    ],
)
def test_wrong_bodies_are_refused_with_the_field_named(body: bytes, param: str | None, code: str) -> None:
    bad = refusal(body)
    assert (bad.param, bad.code, bad.status) == (param, code, 400)
    assert "\n" not in bad.message
    assert len(bad.message) < 200


def test_a_prompt_of_the_wrong_type_is_refused() -> None:
    assert refusal(b'{"model":"m","prompt":{}}', COMPLETIONS_PATH).param == "prompt"
    assert refusal(b'{"model":"m"}', COMPLETIONS_PATH).code == "missing_field"


def test_an_error_has_the_shape_clients_parse() -> None:
    error = json.loads(error_body("no room", "overloaded_error", "queue_full", None, retryable=True))
    assert error == {
        "error": {
            "message": "no room", "type": "overloaded_error", "param": None, "code": "queue_full", "retryable": True,
        }
    }  # fmt: skip
    assert json.loads(refusal(b"{").body())["error"]["type"] == "invalid_request_error"


def test_decodes_what_a_real_engine_accepts(shared_dir: Path) -> None:
    recorded = json.loads((shared_dir / "reference/engines/vllm/responses.json").read_text())
    assert json.loads(recorded["wrong_model"]["body"])["error"].keys() == {"message", "type", "param", "code"}
    assert json.loads(error_body("x", "NotFoundError", 404, "model"))["error"].keys() == {
        "message", "type", "param", "code",
    }  # fmt: skip


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELD_NAMES = ("model", "messages", "prompt", "stream", "max_tokens", "n", "stop", "stream_options", "priority", "x")


@given(
    st.binary(max_size=64)
    | st.text(alphabet='{}[]":,\\ mnu0\ud800', max_size=40).map(lambda t: t.encode("utf-8", "surrogatepass"))
)
def test_any_bytes_end_in_a_body_or_a_bad_body(body: bytes) -> None:
    try:
        decode_request(body, CHAT_PATH)
    except BadBody as bad:
        json.loads(bad.body())


@given(st.dictionaries(st.sampled_from(FIELD_NAMES), json_values), st.sampled_from([CHAT_PATH, COMPLETIONS_PATH, "/x"]))
def test_any_json_object_ends_in_a_body_or_a_bad_body(fields: dict[str, object], endpoint: str) -> None:
    try:
        body = decode_request(json.dumps(fields).encode(), endpoint)
    except BadBody as bad:
        json.loads(bad.body())
    else:
        assert body.model == fields["model"]
        assert body.output_limit == -1 or body.output_limit >= 1
        assert 1 <= body.n <= 128


@given(json_values)
def test_the_prompt_passes_through_byte_for_byte(value: object) -> None:
    raw = msgspec.json.encode([value, "x"])
    body = decode_request(b'{"model":"m","messages":' + raw + b"}", CHAT_PATH)
    assert body.messages is not None
    assert bytes(body.messages) == raw


@pytest.mark.parametrize("gap", ["", " "])
def test_a_body_of_nothing_but_fields_is_refused_before_they_are_all_read(gap: str) -> None:
    fields = ",".join(f'"k{number}":{gap}1' for number in range(5000))
    body = f'{{"model":"m","messages":[1],{fields}}}'.encode()
    with pytest.raises(BadBody, match="more than 1024 fields"):
        decode_request(body, CHAT_PATH)


def test_many_colons_in_a_prompt_are_no_fields_and_duplicates_beside_them_are_still_found() -> None:
    prompt = b'"messages":["' + b":" * 5000 + b'"]'
    assert decode_request(b'{"model":"m",' + prompt + b"}", CHAT_PATH).prompt_bytes == 5004
    with pytest.raises(BadBody) as caught:
        decode_request(b'{"model":"m","model":"n",' + prompt + b"}", CHAT_PATH)
    assert caught.value.code == "duplicate_field"


def test_stop_strings_are_bounded() -> None:
    stops = b",".join([b'"a"'] * 20_000)
    with pytest.raises(BadBody) as caught:
        decode_request(b'{"model":"m","messages":[1],"stop":[' + stops + b"]}", CHAT_PATH)
    assert caught.value.param == "stop"
