"""Real traces read whole; damaged ones stop at file and line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import BadInputError
from tidegate.spec.traffic import TraceSpec
from tidegate.traffic.traces import TraceRow, azure_rows, mooncake_rows, read_trace

Reader = Callable[[Iterable[str], str], list[TraceRow]]

HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
FIRST = "2023-11-16 18:15:46.6805900,374,44\n"


@pytest.mark.parametrize(
    ("file", "trace_format", "rows", "span_s"),
    [
        ("azure-2023-conv.csv", "azure", 19_366, 3501.72),
        ("azure-2023-code.csv", "azure", 8_819, 3435.95),
        ("mooncake-conversation.jsonl", "mooncake", 12_031, 3536.999),
    ],
)
def test_the_published_traces_read_whole(
    shared_dir: Path, file: str, trace_format: str, rows: int, span_s: float
) -> None:
    read = read_trace(TraceSpec(file=file, format=trace_format), shared_dir / "traces")  # type: ignore[arg-type]
    assert len(read) == rows
    assert read[0].at_s == 0.0
    assert read[-1].at_s == pytest.approx(span_s, abs=0.01)


def test_a_slice_starts_at_zero_and_is_sped_up(tmp_path: Path) -> None:
    lines = [f"2023-11-16 00:00:{second:02d},{100 + second},7\n" for second in range(0, 60, 5)]
    (tmp_path / "t.csv").write_text(HEAD + "".join(lines))
    spec = TraceSpec(file="t.csv", format="azure", start_s=9.0, duration_s=16.0, speed=10.0)
    rows = read_trace(spec, tmp_path)
    assert [row.at_s for row in rows] == pytest.approx([0.1, 0.6, 1.1])
    assert [(row.prompt_tokens, row.output_tokens) for row in rows] == [(110, 7), (115, 7), (120, 7)]


def test_mooncake_blocks_are_kept_as_prefix_identity(shared_dir: Path) -> None:
    rows = read_trace(TraceSpec(file="mooncake-conversation.jsonl", format="mooncake"), shared_dir / "traces")
    seen: set[int] = set()
    total = repeated = 0
    for row in rows:
        assert len(row.prefix_hashes) == -(-row.prompt_tokens // 512)
        total += len(row.prefix_hashes)
        repeated += sum(block in seen for block in row.prefix_hashes)
        seen.update(row.prefix_hashes)
    assert repeated / total == pytest.approx(0.37, abs=0.03)


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("", 1, "an empty file"),
        ("time,in,out\n", 1, "expected columns TIMESTAMP,ContextTokens,GeneratedTokens, found columns time,in,out"),
        (HEAD + FIRST + "\n" + FIRST, 3, "an empty line"),
        (HEAD + FIRST + "2023-11-16 18:15:47,374\n", 3, "expected 3 values, found 2"),
        (HEAD + FIRST + "2023-11-16 18:15:47,,44\n", 3, "ContextTokens is missing"),
        (HEAD + FIRST + "2023-11-16 18:15:47,374,0\n", 3, "GeneratedTokens must be a whole number of at least 1"),
        (HEAD + FIRST + "2023-11-16 18:15:47,37.5,4\n", 3, "ContextTokens must be a whole number"),
        (HEAD + FIRST + "2023-11-16 18:15:47,374,999999999\n", 3, "GeneratedTokens must be at most 10000000"),
        (HEAD + "yesterday,374,44\n", 2, "'yesterday' is not a time"),
        (HEAD + "2023-13-45 18:15:47,374,44\n", 2, "is not a time of any day"),
        (HEAD + FIRST + "2023-11-16 18:15:45.68,374,44\n", 3, "earlier than the line before"),
        (HEAD + FIRST + '2023-11-16 18:15:47,"374,44\n', 3, "is not CSV"),
        ('{"timestamp": 0}\n', 1, "found columns"),
    ],
)
def test_a_damaged_azure_trace_is_named_with_file_and_line(text: str, line: int, says: str) -> None:
    with pytest.raises(BadInputError, match=re.escape(f"some.csv:{line}: ")) as caught:
        azure_rows(text.splitlines(keepends=True), "some.csv")
    assert says in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("", "is an empty line"),
        ("{", "is not a Mooncake request"),
        ('{"timestamp": 1, "input_length": 5}', "output_length"),
        ('{"timestamp": "x", "input_length": 5, "output_length": 5}', "timestamp"),
        ('{"timestamp": 9, "input_length": 0, "output_length": 5}', "at least 1"),
        ('{"timestamp": 9, "input_length": 900, "output_length": 5, "hash_ids": [1]}', "2 blocks"),
        ('{"timestamp": 9, "input_length": 90000000000, "output_length": 5}', "at most 10000000"),
        ('{"timestamp": 7, "input_length": 9, "output_length": 5}', "earlier than the line before"),
    ],
)
def test_a_damaged_mooncake_trace_is_named_with_file_and_line(line: str, says: str) -> None:
    good = '{"timestamp": 8, "input_length": 10, "output_length": 5, "hash_ids": [3]}\n'
    with pytest.raises(BadInputError, match=r"^m\.jsonl:2: ") as caught:
        mooncake_rows([good, line + "\n"], "m.jsonl")
    assert says in caught.value.message


def test_missing_binary_empty_and_out_of_range_files_are_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "empty.csv").write_text(HEAD)
    (tmp_path / "good.csv").write_text(HEAD + FIRST)
    for file, says in (
        ("none.csv", "No such file"),
        ("binary.csv", "not UTF-8"),
        ("empty.csv", "holds no request"),
    ):
        with pytest.raises(BadInputError, match=says):
            read_trace(TraceSpec(file=file, format="azure"), tmp_path)
    with pytest.raises(BadInputError, match="no request between 5 s"):
        read_trace(TraceSpec(file="good.csv", format="azure", start_s=5), tmp_path)


ROWS = st.lists(
    st.tuples(st.integers(0, 10**7), st.integers(1, 99_999), st.integers(1, 9_999)), min_size=1, max_size=30
)


@given(ROWS)
def test_mooncake_rows_survive_writing_and_reading(rows: list[tuple[int, int, int]]) -> None:
    rows = sorted(rows)
    lines = [
        msgspec.json.encode({"timestamp": at, "input_length": prompt, "output_length": output}).decode()
        for at, prompt, output in rows
    ]
    read = mooncake_rows(lines, "x")
    assert [(row.prompt_tokens, row.output_tokens) for row in read] == [row[1:] for row in rows]
    assert [row.at_s for row in read] == pytest.approx([(at - rows[0][0]) / 1000 for at, _, _ in rows])


def rows_or_complaint(read: Reader, text: str) -> str:
    """What was wrong, or nothing; anything but a `BadInputError` fails the test."""
    try:
        rows = read(text.splitlines(keepends=True), "f")
    except BadInputError as exc:
        return exc.message
    assert all(row.prompt_tokens >= 1 and row.output_tokens >= 1 for row in rows)
    return ""


@given(st.text(max_size=200), st.sampled_from([azure_rows, mooncake_rows]))
def test_any_text_is_either_a_trace_or_one_clear_error(text: str, read: Reader) -> None:
    assert rows_or_complaint(read, text)[:2] in ("", "f:")


@given(st.text(alphabet='0123456789,-: ."TZ\n', max_size=120))
def test_any_azure_body_is_either_rows_or_one_clear_error(text: str) -> None:
    assert rows_or_complaint(azure_rows, HEAD + text)[:2] in ("", "f:")
