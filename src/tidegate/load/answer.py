"""One answer as it arrives: times of token-carrying chunks, usage, and how it ended. Sans-IO.

In: status, body pieces with the moment they were read, and the end. Out: a `RequestRecord`'s contents. Chunks are
only searched for byte patterns; what is decoded are usage, finish reason and errors, from the first and last few
events.
"""

from __future__ import annotations

from array import array
from collections import deque
from typing import Final

from tidegate.errors import Outcome
from tidegate.load import verdict
from tidegate.load.words import WordCheck
from tidegate.traffic.plan import PlannedRequest
from tidegate.traffic.record import RequestRecord
from tidegate.wire.chunks import ChunkError, decode_finish_reason
from tidegate.wire.sse import (
    VISIBLE,
    EventTooLargeError,
    SseSplitter,
    error_of,
    finish_reason,
    is_done,
    token_kind,
    usage_of,
)

_LAST_EVENTS: Final = 6
"""Finish reason, usage and `[DONE]` are among these; engines send at most three events after the last token."""
_MAX_BODY_BYTES: Final = 16 * 2**20


class Answer:
    """The reading side of one request."""

    __slots__ = (
        "_body",
        "_check",
        "_error",
        "_last",
        "_splitter",
        "_streamed",
        "first_visible_s",
        "is_stream",
        "plan",
        "status",
        "token_times_s",
    )

    def __init__(self, plan: PlannedRequest, verify_words: bool) -> None:
        self.plan = plan
        self.status = 0
        self.is_stream = False
        self.token_times_s = array("d")
        self.first_visible_s = -1.0
        self._check = WordCheck() if verify_words else None
        self._splitter = SseSplitter()
        self._last: deque[bytes] = deque(maxlen=_LAST_EVENTS)
        self._error: ChunkError | None = None
        self._streamed = False
        self._body = bytearray()

    def head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """The answer's status and headers (lower-case names)."""
        self.status = status
        kind = next((value for name, value in headers if name == b"content-type"), b"")
        self._streamed = status == 200 and self.plan.stream and b"event-stream" in kind

    def feed(self, data: bytes, now_s: float) -> str:
        """A piece of the body read at `now_s`; returns `garbage` when it cannot be an answer, else nothing."""
        if not self._streamed:
            if len(self._body) + len(data) > _MAX_BODY_BYTES:
                return "garbage"
            self._body += data
            return ""
        try:
            events = self._splitter.feed(data)
        except EventTooLargeError:
            return "garbage"
        for event in events:
            self._last.append(event)
            kind = token_kind(event)
            if kind:
                self.token_times_s.append(now_s)
                if kind == VISIBLE and self.first_visible_s < 0.0:
                    self.first_visible_s = now_s
                if self._check is not None:
                    self._check.feed(event)
            elif self._error is None:
                self._error = error_of(event)
        return ""

    def completed(self) -> verdict.Verdict:
        """The verdict on an answer whose HTTP message ended properly."""
        if self.status != 200:
            return verdict.of_status(self.status, bytes(self._body))
        if not self.plan.stream:
            return self._whole_verdict()
        if not self._streamed:
            return Outcome.ENGINE_ERROR, "not_a_stream"
        if self._error is not None:
            return verdict.of_stream_error(self._error, bool(self.token_times_s))
        if not any(finish_reason(event) for event in self._last):
            return Outcome.TRUNCATED, "no_finish_reason"
        if not is_done(self._last[-1]):
            return Outcome.TRUNCATED, "no_done"
        return Outcome.COMPLETED, ""

    def broken(self, cause: str) -> verdict.Verdict:
        """The verdict on an answer whose connection failed. An error event that came before is the better cause."""
        if self._error is not None:
            return verdict.of_stream_error(self._error, bool(self.token_times_s))
        return verdict.of_break(cause, self.status != 0)

    def record(self, ended: verdict.Verdict, sent_s: float | None, end_s: float, slo_itl_s: float) -> RequestRecord:
        """What goes into the run's record. Times are on the clock that `feed` was given."""
        outcome, reason = ended
        times = self.token_times_s
        gaps_ms = [round((times[at] - times[at - 1]) * 1e3, 3) for at in range(1, len(times))]
        usage = self._usage()
        output_tokens = len(times) if usage is None else usage[1]
        return RequestRecord(
            plan=self.plan,
            outcome=outcome,
            status=self.status,
            reason=reason,
            sent_s=sent_s,
            first_token_s=times[0] if times else None,
            last_token_s=times[-1] if times else None,
            end_s=end_s,
            prompt_tokens=0 if usage is None else usage[0],
            output_tokens=output_tokens,
            usage_known=usage is not None,
            gap_count=len(gaps_ms),
            gaps_over_slo=sum(gap_ms > slo_itl_s * 1e3 for gap_ms in gaps_ms),
            longest_gap_s=max(gaps_ms, default=0.0) / 1e3,
            gaps_ms=gaps_ms,
            first_visible_s=None if self.first_visible_s < 0.0 else self.first_visible_s,
            text_fault=self._text_fault(outcome, output_tokens),
        )

    def _whole_verdict(self) -> verdict.Verdict:
        body = bytes(self._body)
        if decode_finish_reason(body) is None:
            return Outcome.TRUNCATED, "no_finish_reason"
        return Outcome.COMPLETED, ""

    def _usage(self) -> tuple[int, int] | None:
        if self.status != 200:
            return None
        return usage_of(b"".join(self._last) if self._streamed else bytes(self._body[-8192:]))

    def _text_fault(self, outcome: Outcome, output_tokens: int) -> str:
        check = self._check
        if check is None:
            return ""
        if outcome is Outcome.COMPLETED:
            if not self._streamed:
                check.feed(bytes(self._body))
            check.finish(output_tokens)
        return check.fault
