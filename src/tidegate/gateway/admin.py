"""The admin port: `/health` and `/metrics`, on Starlette and uvicorn in the data path's own event loop.

What else lies on it is handed in by the command that runs the gateway, as an `Extension`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Protocol

import uvicorn
from prometheus_client import CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from tidegate.errors import UnavailableError
from tidegate.gateway.export import GatewayCollector, health
from tidegate.gateway.shell import Gateway


class Extension(Protocol):
    """More for the admin port. Started once both ports are open, stopped before they close."""

    def routes(self) -> list[BaseRoute]: ...

    def start(self) -> None: ...

    def stop(self) -> None: ...


Extend = Callable[[Gateway], Extension]


def application(gateway: Gateway, more: list[BaseRoute] | None = None) -> Starlette:
    """The ASGI application of one gateway."""
    registry = CollectorRegistry()
    registry.register(GatewayCollector(gateway))

    async def answer_health(request: Request) -> Response:
        status, document = health(gateway)
        return JSONResponse(document, status)

    async def answer_metrics(request: Request) -> Response:
        return Response(generate_latest(registry), media_type="text/plain; version=0.0.4; charset=utf-8")

    return Starlette(routes=[Route("/health", answer_health), Route("/metrics", answer_metrics), *(more or [])])


class _QuietServer(uvicorn.Server):
    """uvicorn without its signal handlers: the process belongs to the command that runs the gateway."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class AdminPort:
    """Serves the admin application until `stop`."""

    def __init__(self, gateway: Gateway, extend: Extend | None = None) -> None:
        self._extension = extend(gateway) if extend is not None else None
        config = uvicorn.Config(
            application(gateway, self._extension.routes() if self._extension is not None else None),
            loop="none",
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=1,
        )
        self._server = _QuietServer(config)
        self._task: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int) -> int:
        """Listens; returns the port. Raises `UnavailableError` when it cannot."""
        sock = listening_socket(host, port)
        self._task = asyncio.create_task(self._server.serve([sock]))
        while not self._server.started:
            await asyncio.sleep(0.005)
        bound: int = sock.getsockname()[1]
        return bound

    def extend(self) -> None:
        """Starts the extension: the gateway runs."""
        if self._extension is not None:
            self._extension.start()

    async def stop(self) -> None:
        if self._extension is not None:
            self._extension.stop()
        self._server.should_exit = True
        if self._task is not None:
            await self._task
            self._task = None


def listening_socket(host: str, port: int) -> socket.socket:
    """A bound socket, or `UnavailableError`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except (OSError, OverflowError) as exc:
        sock.close()
        reason = getattr(exc, "strerror", None) or str(exc)
        raise UnavailableError(
            f"cannot listen on {host}:{port} (admin port): {reason}",
            hint="choose another port with --admin, or stop what holds this one",
        ) from exc
    return sock
