"""One small GET over a connection pool: for counters and probes beside a running load."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from tidegate.transport.client import Call, ConnectionPool
from tidegate.wire.http import Headers, request_head

_MAX_BYTES: Final = 8 * 2**20
UNREACHABLE: Final = 0
"""Instead of a status: nobody listens, or the connection broke."""
TIMED_OUT: Final = -1
"""Instead of a status: no answer in time."""


class _Collector:
    """Collects one whole answer."""

    def __init__(self, done: asyncio.Future[tuple[int, bytes]]) -> None:
        self._done = done
        self._status = 0
        self._body = bytearray()

    def on_answer_head(self, call: Call, status: int, headers: Headers) -> None:
        self._status = status

    def on_answer_body(self, call: Call, data: bytes) -> None:
        self._body += data
        if len(self._body) > _MAX_BYTES:
            call.cancel()
            self._finish(UNREACHABLE)

    def on_answer_complete(self, call: Call) -> None:
        self._finish(self._status)

    def on_answer_broken(self, call: Call, cause: str) -> None:
        self._finish(UNREACHABLE)

    def _finish(self, status: int) -> None:
        if not self._done.done():
            self._done.set_result((status, bytes(self._body)))


class Fetcher:
    """GETs paths of one server."""

    def __init__(self, host: str, port: int, prefix: str = "") -> None:
        self._pool = ConnectionPool(host, port, now=time.monotonic, max_idle=1)
        self._host = f"{host}:{port}".encode()
        self._prefix = prefix

    async def get(self, path: str, timeout_s: float = 2.0) -> tuple[int, bytes]:
        """(status, body); `UNREACHABLE` or `TIMED_OUT` in place of a status."""
        done: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        head = request_head("GET", self._prefix + path, [], self._host, 0)
        call = self._pool.call(head, b"", _Collector(done))
        try:
            async with asyncio.timeout(timeout_s):
                return await done
        except TimeoutError:
            return TIMED_OUT, b""
        finally:
            call.cancel()

    def close(self) -> None:
        """Cuts its connections."""
        self._pool.close()
