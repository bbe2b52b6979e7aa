"""The one seam to the network: how upstream connections come to be. Tests put an in-memory network here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol


class Dial(Protocol):
    """A connection attempt under way."""

    def cancel(self) -> object: ...


class Network(Protocol):
    """Makes connections. Either the protocol's `connection_made` or `on_failed` is called, once."""

    def connect(
        self,
        host: str,
        port: int,
        protocol: Callable[[], asyncio.Protocol],
        timeout_s: float,
        on_failed: Callable[[str], None],
    ) -> Dial:
        """`on_failed` gets `refused` or `timeout`."""
        ...


class SystemNetwork:
    """TCP by the running event loop, which sets TCP_NODELAY (forgetting it adds 40 ms at P99; a test looks)."""

    def connect(
        self,
        host: str,
        port: int,
        protocol: Callable[[], asyncio.Protocol],
        timeout_s: float,
        on_failed: Callable[[str], None],
    ) -> Dial:
        return asyncio.get_running_loop().create_task(_dial(host, port, protocol, timeout_s, on_failed))


async def _dial(
    host: str,
    port: int,
    protocol: Callable[[], asyncio.Protocol],
    timeout_s: float,
    on_failed: Callable[[str], None],
) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await asyncio.get_running_loop().create_connection(protocol, host, port)
    except TimeoutError:
        on_failed("timeout")
    except (OSError, ValueError):  # a name that cannot be one of a host is a ValueError
        on_failed("refused")
