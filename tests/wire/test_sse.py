"""Event splitting under any chunking, and reading events of real engines."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidegate.wire import sse
from tidegate.wire.sse import EventTooLargeError, SseSplitter

lines = st.binary(max_size=12).map(lambda b: b.replace(b"\n", b"").replace(b"\r", b""))
stream_bytes = st.lists(st.sampled_from([b"data: x", b"\n", b"\r\n", b"\r", b": c", b"data: {}\n\n"]) | lines).map(
    b"".join
)


def chunked(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in itertools.pairwise(edges)]


@example(b"a\n\r\n\n", [])
@example(b"a\n\r\nb\n\n", [])
@example(b"a\r\n\r\n\nb", [3])
@given(stream_bytes, st.lists(st.integers(min_value=0, max_value=10_000), max_size=12))
def test_any_split_gives_the_same_events(data: bytes, cuts: list[int]) -> None:
    whole, bytewise = SseSplitter(), SseSplitter()
    expected = whole.feed(data)
    assert [event for at in range(len(data)) for event in bytewise.feed(data[at : at + 1])] == expected
    parts = SseSplitter()
    events = [event for chunk in chunked(data, cuts) for event in parts.feed(chunk)]
    assert events == expected
    assert parts.pending_bytes == whole.pending_bytes
    assert b"".join(events) + parts.take_rest() == data
    assert all(event.endswith((b"\n\n", b"\n\r\n")) for event in events)


@given(st.lists(lines, min_size=1, max_size=5), st.sampled_from([b"\n", b"\r\n"]))
def test_data_lines_come_back_whatever_the_line_ending(data: list[bytes], end: bytes) -> None:
    event = b": comment" + end + b"".join(b"data: " + line + end for line in data) + end
    assert SseSplitter().feed(event) == [event]
    assert sse.data_of(event) == b"\n".join(data)


def test_an_event_that_never_ends_is_refused() -> None:
    splitter = SseSplitter(max_event_bytes=100)
    splitter.feed(b"x" * 60)
    with pytest.raises(EventTooLargeError):
        splitter.feed(b"x" * 60)
    with pytest.raises(EventTooLargeError):
        SseSplitter(max_event_bytes=100).feed(b"x" * 200 + b"\n\n")


def events_of(shared_dir: Path, name: str) -> list[bytes]:
    data = (shared_dir / "reference/engines/vllm" / name).read_bytes()
    return SseSplitter().feed(data)


@pytest.mark.parametrize(
    ("name", "tokens", "usage"),
    [
        ("stream.chat.include_usage.sse.txt", 11, (12, 12)),
        ("stream.chat.continuous_usage.sse.txt", 5, (12, 5)),
        ("stream.chat.no_usage.sse.txt", 5, None),
        ("stream.completions.include_usage.sse.txt", 6, (3, 6)),
    ],
)
def test_reads_the_streams_of_a_real_vllm(
    shared_dir: Path, name: str, tokens: int, usage: tuple[int, int] | None
) -> None:
    events = events_of(shared_dir, name)
    # One token of the chat stream decodes to nothing (half of a character), which is no first token either.
    assert sum(sse.first_content(event) for event in events) == tokens
    assert not sse.first_content(events[0]) or "completions" in name
    assert sse.is_done(events[-1])
    assert sse.usage_of(b"".join(events[-2:])) == sse.usage_of(b"".join(events)) == usage
    assert [sse.finish_reason(event) for event in events if sse.finish_reason(event)] == ["length"]
    assert any(sse.is_usage_only(event) for event in events) == (usage is not None)


def test_reads_the_streams_of_a_real_sglang(shared_dir: Path) -> None:
    recorded = (shared_dir / "reference/engines/sglang/run-0.5.17/chat-stream.txt").read_bytes()
    events = SseSplitter().feed(recorded[recorded.index(b"data: {") :])
    assert [sse.token_kind(event) for event in events].count(sse.VISIBLE) == 6
    assert sse.usage_of(b"".join(events)) == (28, 6)


CHUNKS = [
    (b'{"choices":[{"delta":{"role":"assistant","content":""}}]}', sse.NO_TOKEN),
    (b'{"choices":[{"delta":{"content":"hi"}}]}', sse.VISIBLE),
    (b'{"choices":[{"delta":{"content":"\\"content\\":\\"\\""}}]}', sse.VISIBLE),
    (b'{"choices":[{"delta":{"content":""}},{"delta":{"content":"b"}}]}', sse.VISIBLE),
    (b'{"choices":[{"delta":{"content":null,"reasoning_content":"so"}}]}', sse.REASONING),
    (b'{"choices":[{"delta":{"reasoning":"so"}}]}', sse.REASONING),
    (b'{"choices":[{"delta":{"content":null,"tool_calls":[{"index":0}]}}]}', sse.VISIBLE),
    (b'{"choices":[{"delta":{"tool_calls":[]}}]}', sse.NO_TOKEN),
    (b'{"choices":[{"delta":{"tool_calls":null}}]}', sse.NO_TOKEN),
    (b'{"choices":[{"text":"x"}]}', sse.VISIBLE),
    (b'{"choices":[{"text":"","prompt_text":null}]}', sse.NO_TOKEN),
    (b'{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}', sse.NO_TOKEN),
    (b'{"error":{"message":"content"}}', sse.NO_TOKEN),
    (b"[DONE]", sse.NO_TOKEN),
    (b"not json", sse.NO_TOKEN),
]


@pytest.mark.parametrize(("data", "kind"), CHUNKS)
def test_what_counts_as_a_token(data: bytes, kind: int) -> None:
    assert sse.token_kind(b"data: " + data + b"\n\n") == kind
    spaced = data.replace(b'":', b'": ').replace(b'\\": ', b'\\":')
    assert sse.token_kind(b"data: " + spaced + b"\n\n") == kind


def test_comments_and_garbage_carry_nothing() -> None:
    for event in (b": keep-alive\n\n", b"\n\n", b"data: \xff\xfe\n\n", b"data: " + b"[" * 5000 + b"\n\n"):
        assert not sse.first_content(event)
        assert sse.finish_reason(event) is None
        assert sse.error_of(event) is None


def test_an_in_band_error_is_read(shared_dir: Path) -> None:
    event = b'data: {"error": {"message": "busy", "type": "Service Unavailable", "param": null, "code": 503}}\n\n'
    error = sse.error_of(event)
    assert error is not None
    assert (error.message, error.type, error.code) == ("busy", "Service Unavailable", "503")
    assert sse.error_of(b'data: {"choices":[{"delta":{"content":"\\"error\\""}}]}\n\n') is None


def test_usage_is_read_from_the_tail_of_a_body(shared_dir: Path) -> None:
    for engine, key in (("vllm", "ok_nonstream"), ("llamacpp", "ok")):
        recorded = json.loads((shared_dir / f"reference/engines/{engine}/responses.json").read_text())
        body = recorded[key]["body"].encode()
        usage = json.loads(body)["usage"]
        expected = (usage["prompt_tokens"], usage["completion_tokens"])
        assert sse.usage_of(body) == expected
        assert sse.usage_of(body[body.index(b'"usage"') :]) == expected


@pytest.mark.parametrize(
    "tail", [b"", b'"usage":', b'"usage":null', b'"usage":{"prompt_tokens":"x"}', b'"usage":{"pro']
)
def test_usage_that_is_not_there_is_unknown(tail: bytes) -> None:
    assert sse.usage_of(tail) is None


@given(st.binary(max_size=80))
def test_reading_never_raises(data: bytes) -> None:
    event = b"data: " + data + b"\n\n"
    sse.token_kind(event)
    sse.finish_reason(event)
    sse.error_of(event)
    sse.usage_of(b'"usage":' + data)
