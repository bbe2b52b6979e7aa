"""The HTTP/1.1 server: a port, its connections, one timer wheel.

`HttpServer(application)` serves after `start`; `protocol()` makes a connection for any asyncio transport, so that
tests and replays can do without sockets.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from tidegate.errors import UnavailableError
from tidegate.transport.exchange import Application, Exchange
from tidegate.transport.files import room_for_connections
from tidegate.transport.limits import Limits, Statistics
from tidegate.transport.server_connection import ServerConnection
from tidegate.transport.wheel import TimerWheel

__all__ = ["Application", "Exchange", "HttpServer", "Limits", "Statistics"]

TICK_S: Final = 1.0
BACKLOG: Final = 4096

logger = logging.getLogger("tidegate.transport")


class HttpServer:
    """Serves one application on one port."""

    def __init__(self, application: Application, limits: Limits | None = None) -> None:
        self.application = application
        self.limits = limits or Limits()
        self.statistics = Statistics()
        self.capacity = self.limits.connections
        """Connections open at once: the limit, or what this process's open files allow."""
        self.wheel = TimerWheel()
        self.closing = False
        self._connections: set[ServerConnection] = set()
        self._server: asyncio.Server | None = None
        self._ticker: asyncio.TimerHandle | None = None
        self._empty = asyncio.Event()

    def protocol(self) -> ServerConnection:
        """A new connection, to be given a transport."""
        return ServerConnection(self)

    async def start(self, host: str, port: int) -> int:
        """Listens; returns the port (useful with 0). Raises `UnavailableError` when it cannot."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(self.protocol, host, port, backlog=BACKLOG)
        except (OSError, OverflowError) as exc:
            reason = getattr(exc, "strerror", None) or str(exc)
            raise UnavailableError(
                f"cannot listen on {host}:{port}: {reason}", hint="choose another port, or stop what holds this one"
            ) from exc
        self._fit_files()
        self._ticker = loop.call_later(TICK_S, self._tick)
        server: Any = self._server  # its sockets are a tuple in asyncio and a list in uvloop
        bound: int = server.sockets[0].getsockname()[1]
        return bound

    def _fit_files(self) -> None:
        self.capacity = room_for_connections(self.limits.connections)
        if self.capacity < self.limits.connections:
            logger.info(
                "open files allow %d client connections of the %d configured; raise the hard limit (ulimit -Hn)",
                self.capacity,
                self.limits.connections,
            )

    def _tick(self) -> None:
        self._ticker = asyncio.get_running_loop().call_later(TICK_S, self._tick)
        self.wheel.advance()

    def opened(self, connection: ServerConnection) -> bool:
        """Counts a connection in. Returns whether there is room for it."""
        self._connections.add(connection)
        self.statistics.open += 1
        self.statistics.accepted += 1
        if self.statistics.open <= self.capacity and not self.closing:
            return True
        self.statistics.turned_away += 1
        return False

    def closed(self, connection: ServerConnection) -> None:
        self._connections.discard(connection)
        self.statistics.open -= 1
        if not self._connections:
            self._empty.set()

    def stop_accepting(self) -> None:
        """No new connections; idle ones close, the others after the answer they wait for."""
        self.closing = True
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.close_when_idle()

    async def drain(self, patience_s: float) -> bool:
        """Waits until every connection is closed. Returns whether that happened in time."""
        try:
            async with asyncio.timeout(patience_s):
                while self._connections:
                    self._empty.clear()
                    await self._empty.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Ends at once: stops accepting, cuts what is open, and waits until it is closed."""
        self.stop_accepting()
        for connection in list(self._connections):
            connection.abort()
        await self.drain(1.0)
        if self._ticker is not None:
            self._ticker.cancel()
            self._ticker = None
