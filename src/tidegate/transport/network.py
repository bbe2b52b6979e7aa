"""The one seam to the network: how upstream connections come to be. Tests put an in-memory network here."""

from __future__ import annotations

import asyncio
import errno
import re
import socket
from collections.abc import Callable
from typing import Final, Protocol

NOBODY_THERE: Final = frozenset((errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN))
"""What says something about the other end. A lack of files, ports, memory or names on this side does not."""
_NUMBER: Final = re.compile(r"\[Errno (\d+)\]")


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
        """`on_failed` gets `refused` (nobody is there) or `timeout` (no answer, or a shortage on this side)."""
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
    except ValueError:  # a name that cannot be one of a host
        on_failed("refused")
    except OSError as exc:
        on_failed("refused" if _nobody_there(exc) else "timeout")


def _nobody_there(exc: OSError) -> bool:
    if isinstance(exc, socket.gaierror):
        return exc.errno != socket.EAI_AGAIN
    if exc.errno is not None:
        return exc.errno in NOBODY_THERE
    # Several addresses were tried: the loop joins their errors in the text of one that has no number.
    numbers = [int(number) for number in _NUMBER.findall(str(exc))]
    return bool(numbers) and NOBODY_THERE.issuperset(numbers)
