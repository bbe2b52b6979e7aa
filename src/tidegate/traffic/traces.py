"""Recorded request traces: Azure's CSV and Mooncake's JSON lines.

In: a file as it was published. Out: `TraceRow`s in the trace's own time, starting at 0. A trace is evidence, so
nothing is guessed: a hole, a bad value, a stamp out of order or a wrong column stops the reading with one
`BadInputError` naming file and line.

Sources: AzurePublicDataset, LLM inference trace 2023 (TIMESTAMP, ContextTokens, GeneratedTokens; CC-BY 4.0);
Mooncake FAST'25 traces (timestamp in ms, input_length, output_length, hash_ids of 512-token blocks).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NoReturn

import msgspec

from tidegate.errors import BadInputError
from tidegate.spec.traffic import TraceSpec

MOONCAKE_BLOCK_TOKENS: Final = 512
MAX_TOKENS: Final = 10_000_000
"""No engine takes a request beyond this; a row that says more is damaged, and would be sent as gigabytes."""
_AZURE_COLUMNS: Final = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]
_STAMP: Final = re.compile(r"(\d{4}-\d{2}-\d{2})[ T](\d{2}:\d{2}:\d{2})(\.\d{1,9})?(?:Z|\+00:00)?")


class TraceRow(msgspec.Struct, frozen=True, gc=False):
    """One recorded request; `at_s` counts from the trace's first request."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    prefix_hashes: tuple[int, ...] = ()


class _MooncakeLine(msgspec.Struct, gc=False):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...] = ()


def read_trace(spec: TraceSpec, base_dir: Path) -> list[TraceRow]:
    """The slice of a trace that `spec` asks for, in played time: from 0, divided by the speed-up.

    A relative `spec.file` is looked up in `base_dir`. Raises `BadInputError` for a missing, damaged or empty
    file and for a slice that holds no request.
    """
    path = base_dir / spec.file
    rows = _rows(path, spec.format)
    end_s = float("inf") if spec.duration_s is None else spec.start_s + spec.duration_s
    chosen = [row for row in rows if spec.start_s <= row.at_s < end_s]
    if not chosen:
        raise BadInputError(
            f"{path}: no request between {spec.start_s:g} s and {end_s:g} s; the trace ends at {rows[-1].at_s:.0f} s",
            hint="choose an earlier start or a longer duration",
        )
    return [
        TraceRow((row.at_s - spec.start_s) / spec.speed, row.prompt_tokens, row.output_tokens, row.prefix_hashes)
        for row in chosen
    ]


def _rows(path: Path, trace_format: str) -> list[TraceRow]:
    read = azure_rows if trace_format == "azure" else mooncake_rows
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            rows = read(lines, str(path))
    except OSError as exc:
        raise BadInputError(f"{path}: cannot be read: {exc.strerror or exc}") from exc
    except UnicodeDecodeError as exc:
        raise BadInputError(f"{path}: is not UTF-8 text (byte {exc.start})") from exc
    if not rows:
        raise BadInputError(f"{path}: holds no request")
    return rows


def azure_rows(lines: Iterable[str], name: str) -> list[TraceRow]:
    """Rows of an Azure CSV; `name` is what errors call the file."""
    table = csv.reader(lines, strict=True)
    head = _next_row(table, name)
    if head is None or [cell.strip().lstrip("\ufeff") for cell in head] != _AZURE_COLUMNS:
        found = "an empty file" if head is None else "columns " + ",".join(head)[:80]
        _fail(name, 1, f"expected columns {','.join(_AZURE_COLUMNS)}, found {found}", "check the format option")
    rows: list[TraceRow] = []
    origin_s = 0.0
    while (cells := _next_row(table, name)) is not None:
        line = table.line_num
        if len(cells) != len(_AZURE_COLUMNS):
            _fail(name, line, f"expected 3 values, found {len(cells) if cells else 'an empty line'}")
        stamp_s = _stamp_s(cells[0], name, line)
        origin_s = stamp_s if not rows else origin_s
        prompt = _tokens(cells[1], "ContextTokens", name, line)
        output = _tokens(cells[2], "GeneratedTokens", name, line)
        rows.append(_in_order(TraceRow(stamp_s - origin_s, prompt, output), rows, name, line))
    return rows


def mooncake_rows(lines: Iterable[str], name: str) -> list[TraceRow]:
    """Rows of Mooncake JSON lines; `name` is what errors call the file."""
    decoder = msgspec.json.Decoder(_MooncakeLine)
    rows: list[TraceRow] = []
    origin_s = 0.0
    for line, text in enumerate(lines, start=1):
        if not text.strip():
            _fail(name, line, "is an empty line")
        try:
            item = decoder.decode(text)
        except msgspec.DecodeError as exc:
            _fail(name, line, f"is not a Mooncake request: {exc}", "check the format option")
        if item.input_length < 1 or item.output_length < 1:
            _fail(name, line, "input_length and output_length must be at least 1")
        if max(item.input_length, item.output_length) > MAX_TOKENS:
            _fail(name, line, f"input_length and output_length must be at most {MAX_TOKENS}")
        blocks = -(-item.input_length // MOONCAKE_BLOCK_TOKENS)
        if item.hash_ids and len(item.hash_ids) != blocks:
            _fail(name, line, f"{item.input_length} tokens are {blocks} blocks, found {len(item.hash_ids)} hash_ids")
        stamp_s = item.timestamp / 1000
        origin_s = stamp_s if not rows else origin_s
        row = TraceRow(stamp_s - origin_s, item.input_length, item.output_length, item.hash_ids)
        rows.append(_in_order(row, rows, name, line))
    return rows


def _next_row(table: Iterator[list[str]], name: str) -> list[str] | None:
    try:
        return next(table, None)
    except csv.Error as exc:
        line = getattr(table, "line_num", 0)
        _fail(name, line, f"is not CSV: {exc}")


def _stamp_s(text: str, name: str, line: int) -> float:
    match = _STAMP.fullmatch(text.strip())
    if match is None:
        _fail(name, line, f"{text[:40]!r} is not a time", "write 2023-11-16 18:15:46.68 (UTC)")
    try:
        whole = datetime.fromisoformat(f"{match[1]}T{match[2]}").replace(tzinfo=UTC)
    except ValueError:
        _fail(name, line, f"{text[:40]!r} is not a time of any day")
    return whole.timestamp() + float(match[3] or 0)


def _tokens(text: str, column: str, name: str, line: int) -> int:
    value = text.strip()
    if not value:
        _fail(name, line, f"{column} is missing")
    if not (value.isascii() and value.isdigit()) or len(value) > 9 or int(value) < 1:
        _fail(name, line, f"{column} must be a whole number of at least 1, not {value[:40]!r}")
    if int(value) > MAX_TOKENS:
        _fail(name, line, f"{column} must be at most {MAX_TOKENS}, not {value}")
    return int(value)


def _in_order(row: TraceRow, rows: list[TraceRow], name: str, line: int) -> TraceRow:
    if rows and row.at_s < rows[-1].at_s:
        late_s = rows[-1].at_s - row.at_s
        _fail(name, line, f"is {late_s:g} s earlier than the line before", "sort the trace by time")
    return row


def _fail(name: str, line: int, problem: str, hint: str = "") -> NoReturn:
    raise BadInputError(f"{name}:{line}: {problem}", hint=hint)
