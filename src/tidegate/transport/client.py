"""Calls to one upstream over a pool of keep-alive connections.

`ConnectionPool.call` sends a request on the most recently used idle connection (LIFO, so that a small set stays warm
and the rest can expire) or dials a new one. The sink hears of one answer: head, body pieces, and exactly one of
complete and broken, unless the call is cancelled first. A reused connection that turns out to be dead before any byte
of the answer came is replaced once by a new one: servers close idle connections when they like.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from tidegate.transport.call import AnswerSink, Call
from tidegate.transport.client_connection import IDLE, ClientConnection
from tidegate.transport.network import Network, SystemNetwork

__all__ = ["AnswerSink", "Call", "ConnectionPool"]

MAX_IDLE: Final = 2048
IDLE_S: Final = 4.0
"""vLLM's and SGLang's servers close a connection that idles for 5 s; this side gives up first."""


class ConnectionPool:
    """Keep-alive connections to one host and port. Not bounded in use: whoever calls decides how much is in flight."""

    __slots__ = (
        "_coarse_s",
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
        self._coarse_s = now()
        """Time as of the last `expire`: idling is told to a second, and no call reads the clock."""
        self._network: Network = network or SystemNetwork()
        self._idle: list[ClientConnection] = []
        self._connections: set[ClientConnection] = set()

    def call(self, head: bytes, body: Sequence[bytes] | bytes, sink: AnswerSink, context: object = None) -> Call:
        """Sends one request. `head` ends with the empty line; `body` is all of the body, in one piece or several.

        The sink is never called before this returns, because networks and transports never call back at once.
        """
        call = Call(self, (head, body) if isinstance(body, bytes) else (head, *body), sink, context)
        self.calls_open += 1
        while self._idle:
            connection = self._idle.pop()
            if connection.stage == IDLE:
                call.carrier = connection
                call.retriable = True
                connection.send(call, call.request)
                return call
            connection.discard()
        self.dial(call)
        return call

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

    def keep(self, connection: ClientConnection) -> None:
        """Takes a connection back that has answered and may be used again."""
        if len(self._idle) >= self.max_idle:
            connection.discard()
            return
        connection.idle_since_s = self._coarse_s
        self._idle.append(connection)

    def expire(self) -> None:
        """Closes what has idled too long, and moves the pool's coarse time on. Cheap; call it about every second."""
        self._coarse_s = self._now()
        oldest_s = self._coarse_s - self.idle_s
        stale = 0
        while stale < len(self._idle) and self._idle[stale].idle_since_s < oldest_s:
            stale += 1
        for connection in self._idle[:stale]:
            connection.discard()
        self._idle = [connection for connection in self._idle[stale:] if connection.stage == IDLE]

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
