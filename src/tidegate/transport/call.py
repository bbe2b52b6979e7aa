"""One request to an upstream under way, and who hears of its answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tidegate.transport.network import Dial
from tidegate.wire.http import Headers


class AnswerSink(Protocol):
    """Who hears of the answer to a call."""

    def on_answer_head(self, call: Call, status: int, headers: Headers) -> None: ...

    def on_answer_body(self, call: Call, data: bytes) -> None: ...

    def on_answer_complete(self, call: Call) -> None: ...

    def on_answer_broken(self, call: Call, cause: str) -> None:
        """`refused` (nobody listens), `reset`, `garbage` or `timeout` (no connection in time, or a shortage here)."""
        ...


class Carrier(Protocol):
    """The connection that carries a call."""

    def send(self, call: Call, data: Sequence[bytes]) -> None: ...

    def discard(self) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class Dialler(Protocol):
    """The pool a call belongs to."""

    calls_open: int

    def dial(self, call: Call) -> None: ...


class Call:
    """`context` is the caller's own. Everything but `cancel`, `pause` and `resume` is for pool and connection."""

    __slots__ = ("_dial", "_pool", "_wants_pause", "carrier", "context", "ended", "request", "retriable", "sink")

    def __init__(self, pool: Dialler, request: Sequence[bytes], sink: AnswerSink, context: object) -> None:
        self._pool = pool
        self._dial: Dial | None = None
        self.retriable = False
        """It went out on a reused connection, which may turn out to be dead."""
        self._wants_pause = False
        self.request = request
        self.carrier: Carrier | None = None
        self.sink = sink
        self.context = context
        self.ended = False

    def cancel(self) -> None:
        """Closes the connection at once; the sink hears nothing more."""
        if self.ended:
            return
        if self._dial is not None:
            self._dial.cancel()
            self._dial = None
        if self.carrier is not None:
            self.carrier.discard()
        self.end()

    def pause(self) -> None:
        """Stops reading the answer; the upstream's buffers fill."""
        self._wants_pause = True
        if self.carrier is not None:
            self.carrier.pause()

    def resume(self) -> None:
        self._wants_pause = False
        if self.carrier is not None:
            self.carrier.resume()

    def carried_by(self, carrier: Carrier) -> None:
        """Goes out on a fresh connection."""
        self._dial = None
        if self.ended:
            carrier.discard()
            return
        self.carrier = carrier
        carrier.send(self, self.request)
        if self._wants_pause:
            carrier.pause()

    def dialling(self, dial: Dial) -> None:
        self._dial = dial

    def dial_failed(self, cause: str) -> None:
        self._dial = None
        if not self.ended:
            self.broken(cause, False)

    def end(self) -> None:
        """Nothing more is heard of it."""
        self.ended = True
        self.carrier = None
        self.request = ()
        self._pool.calls_open -= 1

    def broken(self, cause: str, untouched: bool) -> None:
        """The connection failed; `untouched`: before one byte of an answer."""
        self.carrier = None
        if untouched and self.retriable:
            self.retriable = False
            self._pool.dial(self)
            return
        self.end()
        self.sink.on_answer_broken(self, cause)
