"""A console before a gateway whose instances and traffic a test sets: alone, or served on a real admin port."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Self

from tidegate.clock import ManualClock
from tidegate.console import Console
from tidegate.errors import Outcome
from tidegate.gateway.admin import AdminPort
from tidegate.gateway.shell import Gateway
from tidegate.policy.ledger import EngineSample
from tidegate.spec import BudgetSpec, ClusterSpec, InstanceSpec, PoolSpec, TenantSpec
from tidegate.testing.live import HOST
from tidegate.testing.memory_transport import MemoryNetwork, MemoryWire

PATIENCE_S = 30.0


class Stage:
    """One gateway and its console. `beat` lets a second pass."""

    def __init__(self, instances: int) -> None:
        half = max(1, instances // 2)
        pools = [_pool("tide", range(1, half + 1))]
        if instances > half:
            pools.append(_pool("ebb", range(half + 1, instances + 1)))
        tenants = [
            TenantSpec(name="acme", key_sha256=["0" * 64], limits=BudgetSpec(requests=600)),
            TenantSpec(name="birch", key_sha256=["1" * 64]),
        ]
        self.clock = ManualClock(1000.0)
        self.wall_s = 1_700_000_000.0
        spec = ClusterSpec(pools=pools, tenants=tenants)
        self.gateway = Gateway(spec, self.clock, network=MemoryNetwork(MemoryWire()))
        self.console = Console(self.gateway, wall=lambda: self.wall_s)
        self.instances = self.gateway.gate.instances

    def serve(
        self, count: int = 1, ttft_s: float = 0.3, gap_s: float = 0.02, outcome: Outcome = Outcome.COMPLETED
    ) -> None:
        """Requests that have ended."""
        meters = self.gateway.meters.by_model["tide"]
        for _ in range(count):
            meters.ended(outcome)
            if outcome is Outcome.COMPLETED:
                meters.ttft.add(ttft_s)
                meters.gap.add(gap_s)
                meters.output_tokens += 100
                for number, amount in enumerate((1, 30, 100)):
                    self.gateway.meters.tenant_tokens["acme"][number] += amount

    def sample(self, number: int, kv: float | None, running: float | None = 4.0, waiting: float | None = 1.0) -> None:
        self.gateway.sampled(self.instances[number], EngineSample(running, waiting, kv, 1000.0, 16.0, 0.0))

    def ready(self, kv: Callable[[int], float | None] = lambda number: 0.5) -> None:
        """Every instance answers and has been scraped."""
        for number, instance in enumerate(self.instances):
            self.gateway.probed(instance, True)
            self.sample(number, kv(number))

    def pass_second(self) -> None:
        self.clock.advance(1.0)
        self.wall_s += 1.0
        self.console.beat()


class Served(Stage):
    """The same on a real admin port, in a loop of its own. Everything that touches the gateway goes through `do`."""

    def __init__(self, instances: int) -> None:
        super().__init__(instances)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._admin = AdminPort(self.gateway, lambda gateway: self.console)
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        self.port = self._wait(self._admin.start(HOST, self.port))
        return self

    def __exit__(self, *exc: object) -> None:
        self._wait(self._admin.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}/console/"

    def do(self, *actions: Callable[[], object]) -> None:
        async def all_of_them() -> None:
            for action in actions:
                action()

        self._wait(all_of_them())

    def beat(self) -> None:
        self.do(self.pass_second)

    def _wait(self, what: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(PATIENCE_S)


def _pool(model: str, ports: range) -> PoolSpec:
    return PoolSpec(
        model=model, instances=[InstanceSpec(url=f"http://10.0.0.1:{port}", name=f"{model}-{port}") for port in ports]
    )
