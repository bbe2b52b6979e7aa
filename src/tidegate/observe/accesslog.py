"""One line per request, without prompts and keys, written ten times a second in one write.

A line per write would cost a system call and stdlib logging another ten microseconds a request. What is pending is
bounded, and flushed when the gateway stops.
"""

from __future__ import annotations

from typing import Final, TextIO

import msgspec
from msgspec import Struct

MAX_PENDING: Final = 1024


class AccessRecord(Struct, gc=False, omit_defaults=True):
    """A finished request. Times in seconds; −1 or absent is unknown."""

    request_id: str
    tenant: str
    model: str
    path: str
    status: int
    outcome: str
    duration_s: float
    attempts: int = 0
    reason: str = ""
    ttft_s: float = -1.0
    queued_s: float = -1.0
    instance: str = ""
    prompt_tokens: int = -1
    output_tokens: int = -1
    at: float = 0.0
    """Unix time of the end, to a tenth of a second: that of the write."""


class AccessLog:
    """Collects records and writes them on `flush`."""

    __slots__ = ("_as_json", "_out", "_pending", "dropped")

    def __init__(self, out: TextIO | None, as_json: bool) -> None:
        self._out = out
        self._as_json = as_json
        self._pending: list[AccessRecord] = []
        self.dropped = 0
        """Lines lost because the log could not be written."""

    @property
    def enabled(self) -> bool:
        return self._out is not None

    @property
    def full(self) -> bool:
        """Time to flush early."""
        return len(self._pending) >= MAX_PENDING

    def add(self, record: AccessRecord) -> None:
        self._pending.append(record)

    def flush(self, unix_s: float) -> None:
        """Writes what is pending. A log that cannot be written never stops the service; the loss is counted."""
        if not self._pending or self._out is None:
            return
        records, self._pending = self._pending, []
        for record in records:
            record.at = round(unix_s, 1)
        try:
            self._out.write(_json_lines(records) if self._as_json else "".join([_line(r) for r in records]))
            self._out.flush()
        except (OSError, ValueError):
            self.dropped += len(records)


def _json_lines(records: list[AccessRecord]) -> str:
    return "".join(msgspec.json.encode(record).decode() + "\n" for record in records)


def _line(r: AccessRecord) -> str:
    tokens = f"{r.prompt_tokens if r.prompt_tokens >= 0 else '?'}+{r.output_tokens if r.output_tokens >= 0 else '?'}"
    return (
        f"{r.request_id} {r.tenant} {r.model} {r.path} {r.status} {r.outcome} in {r.duration_s:.4f}s, first token "
        f"{_seconds(r.ttft_s)}, queued {_seconds(r.queued_s)}, tokens {tokens}, at {r.instance or '-'}"
        f"{f' ({r.reason})' if r.reason else ''}\n"
    )


def _seconds(value: float) -> str:
    return "-" if value < 0.0 else f"{value:.4f}s"
