"""One instance as the data path reaches it: its address, its connections, and the bytes every request begins with."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

from tidegate.engines import DIALECTS
from tidegate.policy.ledger import Instance
from tidegate.transport.client import MAX_IDLE, ConnectionPool
from tidegate.transport.network import Network


class Upstream:
    """An instance and the connection pool to it. Probes have a pool of their own, so that they never wait or steal."""

    __slots__ = ("dialect", "host", "instance", "pool", "probes")

    def __init__(
        self, instance: Instance, now: Callable[[], float], network: Network, connect_timeout_s: float
    ) -> None:
        parts = urlsplit(instance.url)
        self.instance = instance
        self.dialect = DIALECTS[instance.kind]
        self.host = parts.netloc.encode("ascii")
        host, port = parts.hostname or "", parts.port or 80
        kept = MAX_IDLE if self.dialect.reuses_connections else 0
        self.pool = ConnectionPool(
            host, port, now=now, network=network, connect_timeout_s=connect_timeout_s, max_idle=kept
        )
        self.probes = ConnectionPool(
            host, port, now=now, network=network, connect_timeout_s=connect_timeout_s, max_idle=2
        )

    def expire(self) -> None:
        """Closes connections that idled too long."""
        self.pool.expire()
        self.probes.expire()

    def close(self) -> None:
        self.pool.close()
        self.probes.close()
