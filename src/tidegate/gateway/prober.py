"""Looks at one instance again and again: is it alive, and what do its metrics say?

The dialect's health path first, its metrics after it, over connections of their own. A refused connection means dead;
an answer other than 200 or none in time means busy and is reported as nothing, so that a long prefill is never taken
for a death.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from tidegate.gateway.upstream import Upstream
from tidegate.policy.ledger import EngineSample, Instance
from tidegate.transport.client import Call
from tidegate.wire.http import Headers
from tidegate.wire.prometheus import engine_sample, parse, wanted_names

PATIENCE_S: Final = 5.0
MAX_PAGE_BYTES: Final = 4 * 2**20


class Findings(Protocol):
    """Who is told."""

    def probed(self, instance: Instance, alive: bool) -> None: ...

    def sampled(self, instance: Instance, sample: EngineSample) -> None: ...


class Prober:
    """Probes one upstream; `round` starts a look unless the last one is still under way."""

    __slots__ = (
        "_call", "_findings", "_now", "_page", "_page_bytes", "_scraping", "_started_s", "_status", "_upstream",
        "_wanted", "timeouts",
    )  # fmt: skip

    def __init__(self, upstream: Upstream, findings: Findings, now: Callable[[], float]) -> None:
        self._upstream = upstream
        self._findings = findings
        self._now = now
        self._wanted = wanted_names(upstream.instance.kind)
        self._call: Call | None = None
        self._scraping = False
        self._started_s = 0.0
        self._status = 0
        self._page: list[bytes] = []
        self._page_bytes = 0
        self.timeouts = 0

    def round(self) -> None:
        """Starts a look. One that takes too long is given up and counted."""
        if self._call is not None:
            if self._now() - self._started_s < PATIENCE_S:
                return
            self.timeouts += 1
            self._call.cancel()
        self._scraping = False
        self._get(self._upstream.dialect.health_path)

    def stop(self) -> None:
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def _get(self, path: str) -> None:
        self._started_s = self._now()
        self._status = 0
        self._page = []
        self._page_bytes = 0
        head = b"GET %b HTTP/1.1\r\nhost: %b\r\naccept: */*\r\n\r\n" % (path.encode("ascii"), self._upstream.host)
        self._call = self._upstream.probes.call(head, b"", self)

    # --- transport.AnswerSink ---

    def on_answer_head(self, call: Call, status: int, headers: Headers) -> None:
        self._status = status

    def on_answer_body(self, call: Call, data: bytes) -> None:
        if not self._scraping:
            return
        self._page.append(data)
        self._page_bytes += len(data)
        if self._page_bytes > MAX_PAGE_BYTES:
            self.stop()

    def on_answer_complete(self, call: Call) -> None:
        self._call = None
        if self._scraping:
            if self._status == 200:
                self._findings.sampled(self._upstream.instance, self._sample())
            return
        if self._status == 200:
            self._findings.probed(self._upstream.instance, True)
            self._scraping = True
            self._get(self._upstream.dialect.metrics_path)

    def on_answer_broken(self, call: Call, cause: str) -> None:
        self._call = None
        if cause == "refused":
            self._findings.probed(self._upstream.instance, False)

    def _sample(self) -> EngineSample:
        text = b"".join(self._page).decode("utf-8", "replace")
        self._page = []
        fields = engine_sample(parse(text, self._wanted), self._upstream.instance.kind)
        return EngineSample(
            fields.running,
            fields.waiting,
            fields.kv_used_fraction,
            fields.capacity_blocks,
            fields.block_tokens,
            fields.preemptions,
        )
