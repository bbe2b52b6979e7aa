"""One request on its way: the client's exchange, the ticket, the upstream call, and the answer between them.

A flight lives from the head to the settled ticket. Its answer is in one of these states; only from `STREAMING` and
`FLOWING` on has the client seen a byte, and only before may the gate send the request elsewhere:

    WAITING   --2xx event stream--> PRELUDE    --first token--> STREAMING --whole--> done
    WAITING   --2xx other--------> COLLECTING --whole--> answered in one piece
                                   COLLECTING --too large--> FLOWING --whole--> done
    WAITING   --not 2xx----------> BAD         --whole--> the gate says: elsewhere, or passed on as it came
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidegate.gateway.answers import refusal_body, refusal_event, refusal_headers
from tidegate.gateway.endpoints import TOKEN_PATHS
from tidegate.gateway.stream import EventRelay
from tidegate.observe.meters import ModelMeters
from tidegate.policy.ticket import Attempt, Refusal, Ticket, Usage
from tidegate.transport.client import Call
from tidegate.transport.exchange import Exchange
from tidegate.wire.http import FRAMING, HOP_BY_HOP, Headers, head_lines, passed_lines, passed_on
from tidegate.wire.sse import EventTooLargeError, usage_of

if TYPE_CHECKING:
    from tidegate.gateway.shell import Gateway
    from tidegate.gateway.tenants import Tenant
    from tidegate.gateway.upstream import Upstream

WAITING: Final = 0
PRELUDE: Final = 1
STREAMING: Final = 2
COLLECTING: Final = 3
FLOWING: Final = 4
BAD: Final = 5

COLLECT_BYTES: Final = 2**20
"""An answer that is not a stream is held up to here, so that a break can still be answered with an error."""

NOT_UPSTREAM: Final = FRAMING | {b"accept-encoding", b"x-request-id"}
"""An encoded answer could not be metered, so none is asked for."""
KEYS: Final = frozenset((b"authorization", b"x-api-key"))
"""Dropped too where keys are Tidegate's own."""
NOT_DOWNSTREAM: Final = HOP_BY_HOP | {b"content-length", b"x-request-id"}


def kept(journal: list[bytes], data: bytes, bound_bytes: int) -> list[bytes] | None:
    """The journal with `data`, or None once it is too large to be kept. Pieces are bounded by their count times the
    smallest event, so that nothing is added up on the way."""
    journal.append(data)
    if len(journal) % 64 == 0 and sum(map(len, journal)) > bound_bytes:
        return None
    return journal


ASK_FOR_USAGE: Final = b'{"stream_options":{"include_usage":true},'


class Flight:
    """See the module's docstring. It is the ticket's `context`, the exchange's and the sink of its calls."""

    __slots__ = (
        "_call", "_gateway", "_headers", "_held", "_held_bytes", "_journal", "_relay", "_state", "_status", "attempt",
        "body", "defect", "exchange", "hides_usage", "meters", "model", "more", "path", "reason", "request_id",
        "tenant", "ticket", "told_status", "usage",
    )  # fmt: skip

    def __init__(self, gateway: Gateway, exchange: Exchange, tenant: Tenant, path: str, request_id: bytes) -> None:
        self._gateway = gateway
        self.exchange = exchange
        self.tenant = tenant
        self.path = path
        self.request_id = request_id
        self.body = b""
        """The request body, or its first piece; kept until the ticket is settled, for a second attempt."""
        self.more: list[bytes] | None = None
        self.ticket: Ticket | None = None
        self.attempt: Attempt | None = None
        self.meters: ModelMeters | None = None
        self.model = ""
        """What the client asked for; empty until the body was read."""
        self.told_status = 0
        """The status the client got; 0 while it has none."""
        self.reason = ""
        self.usage: Usage | None = None
        self.defect = False
        """Tidegate itself failed on it."""
        self.hides_usage = False
        """The client did not ask for a usage chunk: the engine is asked for one all the same, and it is kept back."""
        self._call: Call | None = None
        self._state = WAITING
        self._journal: list[bytes] | None = None
        """What was delivered of a stream, in pieces; None where none is kept or it grew past its bound."""

    # --- the request ---

    def take(self, data: bytes) -> None:
        """A piece of the request body."""
        if not self.body:
            self.body = data
        elif self.more is None:
            self.more = [self.body, data]
        else:
            self.more.append(data)

    def whole_body(self) -> bytes:
        """The request body in one piece."""
        if self.more is not None:
            self.body = b"".join(self.more)
            self.more = None
        return self.body

    def attempt_at(self, attempt: Attempt, upstream: Upstream, dropped: frozenset[bytes]) -> None:
        """Sends the request to an instance, without the headers in `dropped`."""
        exchange = self.exchange
        self.attempt = attempt
        self._state = WAITING
        self._status = 0
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._relay: EventRelay | None = None
        body: bytes | tuple[bytes, bytes] = self.body
        length = len(self.body)
        if self.hides_usage:
            # A splice into the raw bytes: whatever the client wrote stays as it wrote it.
            opened = self.body.index(b"{") + 1
            body = (ASK_FOR_USAGE, self.body[opened:])
            length += len(ASK_FOR_USAGE) - opened
        if b"connection" in exchange.named:
            lines = head_lines(passed_on(exchange.headers, dropped))
        else:
            lines = passed_lines(exchange.headers, dropped)
        head = b"POST %b HTTP/1.1\r\nhost: %b\r\n%bx-request-id: %b\r\ncontent-length: %d\r\n\r\n" % (
            exchange.target.encode("ascii"),
            upstream.host,
            lines,
            self.request_id,
            length,
        )
        self._call = upstream.pool.call(head, body, self)
        if not exchange.writable:
            self._call.pause()

    def cancel(self) -> None:
        """Closes the upstream call, if one is open."""
        call, self._call = self._call, None
        if call is not None:
            call.cancel()

    def client_writable(self, writable: bool) -> None:
        """Slows the engine down to the client's pace."""
        if self._call is None:
            return
        if writable:
            self._call.resume()
        else:
            self._call.pause()

    # --- the answer, as the call reports it ---

    def on_answer_head(self, call: Call, status: int, headers: Headers) -> None:
        self._status = status
        self._headers = headers
        if not 200 <= status < 300:
            self._state = BAD
            return
        self._state = COLLECTING
        for name, value in headers:
            if name == b"content-type" and value.startswith(b"text/event-stream"):
                self._state = PRELUDE
                self._relay = EventRelay(self.path in TOKEN_PATHS, self.hides_usage)

    def on_answer_body(self, call: Call, data: bytes) -> None:
        relay = self._relay
        if relay is not None:
            tokens = relay.usual(data) if self._state == STREAMING else -1
            if tokens < 0:
                self._relay_events(relay, data)
                return
            attempt, meters = self.attempt, self.meters
            assert attempt is not None
            assert meters is not None
            now = self._gateway.now()
            meters.gap.add(now - attempt.last_s)
            if tokens > 1:
                meters.gap.add_zeros(tokens - 1)
            attempt.tokens += tokens
            attempt.last_s = now
            if self._journal is not None:
                self._journal = kept(self._journal, data, self._gateway.journal_bytes)
            self.exchange.send(data)
        elif self._state == FLOWING:
            self._gateway.progress(self, 0)
            self.exchange.send(data)
        elif self._held or len(data) > COLLECT_BYTES:
            self._collect(data)
        else:
            self._held.append(data)
            self._held_bytes = len(data)

    def _relay_events(self, relay: EventRelay, data: bytes) -> None:
        try:
            block = relay.whole(data)
        except EventTooLargeError:
            self.cancel()
            self._gateway.broke(self, "garbage")
            return
        if not block:
            return
        if self._state == STREAMING:
            self._gateway.progress(self, relay.meter(block))
            shown = relay.shown(block)
            if shown:
                self.exchange.send(shown)
            return
        tokens = relay.starts(block)
        if tokens:
            self._begin_stream(relay, tokens)

    def _begin_stream(self, relay: EventRelay, tokens: int) -> None:
        self._gateway.first_token(self, tokens)
        if self.exchange.ended:
            return
        self._state = STREAMING
        self.told_status = self._status
        self.exchange.start(self._status, self._answer_lines())
        self.exchange.send(relay.prelude)
        if self._gateway.journal_bytes:
            self._journal = [relay.prelude]
        relay.prelude = b""

    def _collect(self, data: bytes) -> None:
        self._held.append(data)
        self._held_bytes += len(data)
        if self._held_bytes <= COLLECT_BYTES:
            return
        if self._state == BAD:
            self.cancel()
            self._gateway.broke(self, "garbage")
            return
        self._gateway.whole_answer(self)
        self._state = FLOWING
        self.told_status = self._status
        length = dict(self._headers).get(b"content-length", b"")
        self.exchange.start(self._status, self._answer_lines(), int(length) if length.isdigit() else -1)
        held, self._held = self._held, []
        self.exchange.send(b"".join(held))

    def on_answer_complete(self, call: Call) -> None:
        self._call = None
        if self._relay is not None:
            self._stream_over(self._relay)
        elif self._state == BAD:
            self._gateway.answered_badly(self, self._status, self._retry_after_s())
        elif self._state == FLOWING:
            self.exchange.finish()
            self._gateway.finished(self, None)
        else:
            self._answer_whole()

    def _answer_whole(self) -> None:
        body = self._held[0] if len(self._held) == 1 else b"".join(self._held)
        usage = usage_of(body)
        self._gateway.whole_answer(self)
        self.told_status = self._status
        self.exchange.respond(self._status, self._answer_lines(), body)
        self._gateway.finished(self, None if usage is None else Usage(usage[0], usage[1]))

    def _stream_over(self, relay: EventRelay) -> None:
        if relay.error_seen or not relay.ended_well():
            self._gateway.broke(self, "the engine reported an error" if relay.error_seen else "no finish reason")
            return
        if self._state == PRELUDE:
            self._begin_stream(relay, 0)
        rest = relay.rest()
        if rest:
            self.exchange.send(rest)
        self.exchange.finish()
        assert self.attempt is not None
        self._gateway.finished(self, relay.usage(self.attempt.ticket.prompt_tokens, self.attempt.tokens))

    def on_answer_broken(self, call: Call, cause: str) -> None:
        self._call = None
        if self._relay is not None and self._state == STREAMING and self._relay.said_done():
            self._stream_over(self._relay)
            return
        self._gateway.broke(self, cause)

    def _retry_after_s(self) -> float | None:
        for name, value in self._headers:
            if name == b"retry-after" and value.isdigit() and len(value) < 7:
                return float(value)
        return None

    def _answer_lines(self) -> bytes:
        """The engine's header lines, less what belongs to its connection, plus the request id."""
        headers = self._headers
        for name, value in headers:
            if name == b"connection" and value.lower() not in (b"keep-alive", b"close"):
                headers = passed_on(headers, NOT_DOWNSTREAM)
                break
        lines = b"%bx-request-id: %b\r\n" % (passed_lines(headers, NOT_DOWNSTREAM), self.request_id)
        limits = self._gateway.limit_headers(self)
        return lines + head_lines(limits) if limits else lines

    # --- what the client is told ---

    @property
    def bad(self) -> bool:
        """Whether the last answer was a refusal of the engine."""
        return self._state == BAD

    def pass_bad_answer_on(self) -> None:
        """The engine's own refusal, as it came; nothing to do when the client was told otherwise."""
        if not self.exchange.started:
            self.told_status = self._status
            self.exchange.respond(self._status, self._answer_lines(), b"".join(self._held))

    def refuse(self, refusal: Refusal) -> None:
        """An HTTP error, or one in-band error event, or (a half-sent body that is no stream) a cut."""
        self.reason = refusal.code
        if not self.exchange.started:
            self.told_status = refusal.status
            headers = refusal_headers(refusal, self.request_id) + self._gateway.limit_headers(self)
            self.exchange.respond(refusal.status, headers, refusal_body(refusal))
        elif self._state == STREAMING:
            if self._relay is None or not self._relay.error_seen:
                self.exchange.send(refusal_event(refusal))
            self.exchange.finish()
        else:
            self.exchange.abort()

    def release(self) -> None:
        """Breaks the cycles it is part of: the garbage collector would pay for them later, many times dearer."""
        if self.ticket is not None:
            self.ticket.context = None
        self.exchange.context = None
