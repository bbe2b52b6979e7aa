"""Calls to one upstream over a pool of keep-alive connections.

`ConnectionPool.call` sends a request on the most recently used idle connection (LIFO, so that a small set stays warm
and the rest can expire) or dials a new one. The sink hears of one answer: head, body pieces, and exactly one of
complete and broken, unless the call is cancelled first. A reused connection that turns out to be dead before any byte
of the answer came is replaced once by a new one: servers close idle connections when they like.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from tidegate.transport.client_connection import ClientConnection
from tidegate.transport.network import Dial, Network, SystemNetwork
from tidegate.wire.http import Headers

MAX_IDLE: Final = 2048
IDLE_S: Final = 4.0
"""vLLM's and SGLang's servers close a connection that idles for 5 s; this side gives up first."""


class AnswerSink(Protocol):
    """Who hears of the answer to a call."""

    def on_answer_head(self, call: Call, status: int, headers: Headers) -> None: ...

    def on_answer_body(self, call: Call, data: bytes) -> None: ...

    def on_answer_complete(self, call: Call) -> None: ...

    def on_answer_broken(self, call: Call, cause: str) -> None:
        """`refused` (nobody listens), `reset`, `garbage` or `timeout` (of the connect)."""
        ...


class Call:
    """One request under way. `context` is the caller's own."""

    __slots__ = ("_connection", "_dial", "_pool", "_retriable", "_writes", "context", "ended", "sink")

    def __init__(self, pool: ConnectionPool, writes: Sequence[bytes], sink: AnswerSink) -> None:
        self._pool = pool
        self._writes = writes
        self._connection: ClientConnection | None = None
        self._dial: Dial | None = None
        self._retriable = False
        self.sink = sink
        self.context: object = None
        self.ended = False

    def cancel(self) -> None:
        """Closes the connection at once; the sink hears nothing more."""
        if self.ended:
            return
        self.ended = True
        if self._dial is not None:
            self._dial.cancel()
            self._dial = None
        if self._connection is not None:
            self._connection.discard()
        self._release()

    def pause(self) -> None:
        """Stops reading the answer; the upstream's buffers fill."""
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        if self._connection is not None:
            self._connection.resume()

    # --- what the connection reports ---

    def connected(self, connection: ClientConnection) -> None:
        """A fresh connection for this call."""
        self._dial = None
        if self.ended:
            connection.discard()
            return
        self.send_on(connection, fresh=True)

    def send_on(self, connection: ClientConnection, fresh: bool) -> None:
        self._connection = connection
        self._retriable = not fresh
        connection.send(self, self._writes)

    def head(self, status: int, headers: Headers) -> None:
        self._retriable = False
        self._writes = ()
        self.sink.on_answer_head(self, status, headers)

    def body(self, data: bytes) -> None:
        self.sink.on_answer_body(self, data)

    def complete(self) -> None:
        self.ended = True
        self._release()
        self.sink.on_answer_complete(self)

    def broken(self, cause: str, untouched: bool = False) -> None:
        """`untouched`: not one byte of an answer had come."""
        self._connection = None
        if untouched and self._retriable:
            self._pool.dial(self)
            return
        self.ended = True
        self._release()
        self.sink.on_answer_broken(self, cause)

    def dialling(self, dial: Dial) -> None:
        self._dial = dial

    def dial_failed(self, cause: str) -> None:
        self._dial = None
        if not self.ended:
            self.broken(cause)

    def _release(self) -> None:
        self._connection = None
        self._writes = ()
        self._pool.call_ended()


class ConnectionPool:
    """Keep-alive connections to one host and port. Not bounded in use: whoever calls decides how much is in flight."""

    __slots__ = (
        "_connections",
        "_idle",
        "_network",
        "_now",
        "calls_open",
        "connect_timeout_s",
        "dialled",
        "host",
        "idle_s",
        "max_idle",
        "port",
    )

    def __init__(
        self,
        host: str,
        port: int,
        *,
        now: Callable[[], float],
        network: Network | None = None,
        connect_timeout_s: float = 2.0,
        max_idle: int = MAX_IDLE,
        idle_s: float = IDLE_S,
    ) -> None:
        self.host = host
        self.port = port
        self.connect_timeout_s = connect_timeout_s
        self.max_idle = max_idle
        self.idle_s = idle_s
        self.calls_open = 0
        self.dialled = 0
        self._now = now
        self._network: Network = network or SystemNetwork()
        self._idle: list[ClientConnection] = []
        self._connections: set[ClientConnection] = set()

    def call(self, head: bytes, body: Sequence[bytes] | bytes, sink: AnswerSink, context: object = None) -> Call:
        """Sends one request. `head` ends with the empty line; `body` is all of the body, in one piece or several.

        The sink is never called before this returns, because networks and transports never call back at once.
        """
        call = Call(self, (head, body) if isinstance(body, bytes) else (head, *body), sink)
        call.context = context
        self.calls_open += 1
        connection = self._reusable()
        if connection is None:
            self.dial(call)
        else:
            call.send_on(connection, fresh=False)
        return call

    def _reusable(self) -> ClientConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable(self._now() - self.idle_s):
                return connection
            connection.discard()
        return None

    def dial(self, call: Call) -> None:
        """Makes a new connection for `call`."""
        self.dialled += 1

        def protocol() -> ClientConnection:
            return ClientConnection(self, call)

        call.dialling(self._network.connect(self.host, self.port, protocol, self.connect_timeout_s, call.dial_failed))

    def opened(self, connection: ClientConnection) -> None:
        self._connections.add(connection)

    def closed(self, connection: ClientConnection) -> None:
        self._connections.discard(connection)

    def call_ended(self) -> None:
        self.calls_open -= 1

    def keep(self, connection: ClientConnection) -> None:
        """Takes a connection back that has answered and may be used again."""
        if len(self._idle) >= self.max_idle:
            connection.discard()
            return
        connection.idle_since_s = self._now()
        self._idle.append(connection)

    def expire(self) -> None:
        """Closes what has idled too long. Cheap; call it about every second."""
        oldest_s = self._now() - self.idle_s
        stale = 0
        while stale < len(self._idle) and self._idle[stale].idle_since_s < oldest_s:
            stale += 1
        for connection in self._idle[:stale]:
            connection.discard()
        self._idle = [connection for connection in self._idle[stale:] if connection.usable(oldest_s)]

    def close(self) -> None:
        """Cuts every connection, in use or not."""
        for connection in list(self._connections):
            connection.discard()
        self._idle.clear()

    @property
    def idle(self) -> int:
        """Connections waiting for a call. One that its server closed is counted until `expire` or a call sees it."""
        return len(self._idle)

    @property
    def open_connections(self) -> int:
        return len(self._connections)
