"""A running gateway: its ports, its timers, its end. The only part of the room that needs an event loop."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable
from typing import Final

from tidegate.clock import Clock, SystemClock
from tidegate.gateway.admin import AdminPort, Extend
from tidegate.gateway.prober import Prober
from tidegate.gateway.shell import TICK_S, Gateway
from tidegate.observe.accesslog import AccessLog
from tidegate.spec import ClusterSpec

LAST_WORDS_S: Final = 1.0
"""For the error events of what drain ended to reach their clients."""

logger = logging.getLogger("tidegate.gateway")


class Service:
    """One gateway on real sockets. `start`, then `stop`; both from the loop it runs on."""

    def __init__(
        self,
        spec: ClusterSpec,
        *,
        clock: Clock | None = None,
        access_log: AccessLog | None = None,
        extend: Extend | None = None,
    ) -> None:
        """`extend` makes what the admin port serves beside health and metrics."""
        self.gateway = Gateway(
            spec,
            clock or SystemClock(),
            access_log=access_log,
            request_id_prefix=f"req-{uuid.uuid4().hex[:12]}-",
        )
        self.port = 0
        self.admin_port = 0
        self._spec = spec.gateway
        self._admin = AdminPort(self.gateway, extend)
        self._probers = [
            Prober(upstream, self.gateway, self.gateway.now) for upstream in self.gateway.upstreams.values()
        ]
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._next_tick_s = 0.0

    async def start(self) -> None:
        """Opens both ports and begins to probe. Raises `UnavailableError` when a port is taken."""
        host, port = split_address(self._spec.listen)
        admin_host, admin_port = split_address(self._spec.admin)
        self.admin_port = await self._admin.start(admin_host, admin_port)
        try:
            self.port = await self.gateway.server.start(host, port)
        except BaseException:
            await self._admin.stop()
            raise
        self._next_tick_s = asyncio.get_running_loop().time()
        self._tick()
        self._probe()
        self._admin.extend()

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        lag_s = loop.time() - self._next_tick_s
        self.gateway.meters.tick_lag_max_s = max(self.gateway.meters.tick_lag_max_s, lag_s)
        self._next_tick_s += TICK_S * (1 + int(lag_s / TICK_S))
        self._timers["tick"] = loop.call_at(self._next_tick_s, self._tick)
        self.gateway.tick()
        self.gateway.access_log.flush()

    def _probe(self) -> None:
        loop = asyncio.get_running_loop()
        self._timers["probe"] = loop.call_later(self._spec.scrape_interval_s, self._probe)
        for prober in self._probers:
            prober.round()

    async def stop(self, hurry: asyncio.Event | None = None) -> bool:
        """Drains, then ends. `hurry` set at any moment cuts the drain short. Returns whether nothing was cut."""
        hurry = hurry or asyncio.Event()
        self.gateway.drain()
        clean = await self._until(lambda: not self.gateway.flights, self._spec.drain_s, hurry)
        if not clean:
            logger.warning("%d requests did not finish within the drain and were ended", len(self.gateway.flights))
            self.gateway.end_drain()
        await self._until(lambda: self.gateway.server.statistics.open == 0, LAST_WORDS_S, hurry)
        await self._close()
        return clean

    async def _until(self, done: Callable[[], bool], patience_s: float, hurry: asyncio.Event) -> bool:
        deadline_s = asyncio.get_running_loop().time() + patience_s
        while not done():
            if hurry.is_set() or asyncio.get_running_loop().time() >= deadline_s:
                return False
            await asyncio.sleep(0.02)
        return True

    async def _close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        for prober in self._probers:
            prober.stop()
        await self.gateway.server.close()
        self.gateway.close()
        await self._admin.stop()
        self.gateway.access_log.flush()


def split_address(address: str) -> tuple[str, int]:
    """`host:port` or `[v6]:port`."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
