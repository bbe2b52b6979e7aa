"""One line per request, without prompts and keys, written ten times a second in one write.

A line per write would cost a system call and stdlib logging another ten microseconds a request. What is pending is
bounded, and flushed when the gateway stops.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TextIO

import msgspec

MAX_PENDING: Final = 4096


class AccessLog:
    """Collects lines and writes them on `flush`. Times in seconds; −1 is unknown."""

    __slots__ = ("_as_json", "_out", "_pending", "_wall", "dropped")

    def __init__(self, out: TextIO | None, as_json: bool, wall: Callable[[], float] = time.time) -> None:
        self._out = out
        self._as_json = as_json
        self._wall = wall
        self._pending: list[str] = []
        self.dropped = 0
        """Lines lost because the log could not be written."""

    @property
    def enabled(self) -> bool:
        return self._out is not None

    def add(
        self,
        request_id: str,
        tenant: str,
        model: str,
        path: str,
        status: int,
        outcome: str,
        duration_s: float,
        ttft_s: float,
        queued_s: float,
        instance: str,
        attempts: int,
        prompt_tokens: int,
        output_tokens: int,
        reason: str,
    ) -> None:
        """One finished request. `status` 0: the client left before it was told anything."""
        if self._as_json:
            line = msgspec.json.encode(
                {
                    "at": round(self._wall(), 3),
                    "request_id": request_id,
                    "tenant": tenant,
                    "model": model,
                    "path": path,
                    "status": status,
                    "outcome": outcome,
                    "duration_s": round(duration_s, 6),
                    "ttft_s": round(ttft_s, 6) if ttft_s >= 0 else None,
                    "queued_s": round(queued_s, 6) if queued_s >= 0 else None,
                    "instance": instance or None,
                    "attempts": attempts,
                    "prompt_tokens": prompt_tokens if prompt_tokens >= 0 else None,
                    "output_tokens": output_tokens if output_tokens >= 0 else None,
                    "reason": reason or None,
                }
            ).decode()
        else:
            line = (
                f"{request_id} {tenant} {model} {path} {status} {outcome} {int(duration_s * 1e3)}ms "
                f"ttft={_ms(ttft_s)} queued={_ms(queued_s)} tokens={_count(prompt_tokens)}+{_count(output_tokens)} "
                f"attempts={attempts} at={instance or '-'}{' reason=' + reason if reason else ''}"
            )
        self._pending.append(line)
        if len(self._pending) >= MAX_PENDING:
            self.flush()

    def flush(self) -> None:
        """Writes what is pending. A log that cannot be written never stops the service; the loss is counted."""
        if not self._pending or self._out is None:
            return
        lines, self._pending = self._pending, []
        try:
            self._out.write("\n".join(lines) + "\n")
            self._out.flush()
        except (OSError, ValueError):
            self.dropped += len(lines)


def _ms(seconds: float) -> str:
    return f"{int(seconds * 1e3)}ms" if seconds >= 0 else "-"


def _count(number: int) -> str:
    return str(number) if number >= 0 else "-"
