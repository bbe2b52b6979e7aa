"""A whole gateway in memory, with its engines and clients, moved by hand on a manual clock."""

from __future__ import annotations

from tidegate.clock import ManualClock
from tidegate.errors import Outcome
from tidegate.gateway.shell import TICK_S, Gateway
from tidegate.policy.gate import Decision
from tidegate.spec import AdmissionSpec, ClusterSpec, GatewaySpec, InstanceSpec, PoolSpec, QueueSpec, TenantSpec
from tidegate.testing.memory_transport import EngineRequest, MemoryClient, MemoryNetwork, MemoryWire


def spec_of(
    *, max_in_flight: int = 64, queue: int = 8, tenants: list[TenantSpec] | None = None, instances: int = 2
) -> ClusterSpec:
    """Model `m` on instances `e1`, `e2`, …"""
    gateway = GatewaySpec(
        admission=AdmissionSpec(max_in_flight=max_in_flight), queue=QueueSpec(max_requests=queue, max_wait_s=2.0)
    )
    urls = [InstanceSpec(url=f"http://engine:{port}", name=f"e{port}") for port in range(1, instances + 1)]
    return ClusterSpec(pools=[PoolSpec(model="m", instances=urls)], gateway=gateway, tenants=tenants or [])


def post(body: bytes, path: bytes = b"/v1/chat/completions", headers: bytes = b"") -> bytes:
    """A POST as it goes over the wire."""
    return b"POST %b HTTP/1.1\r\nhost: gate\r\n%bcontent-length: %d\r\n\r\n%b" % (path, headers, len(body), body)


def chat(extra: bytes = b"") -> bytes:
    """A chat request's body with `extra` members, which begin with a comma."""
    return b'{"model":"m","messages":[{"role":"user","content":"hello"}]%b}' % extra


class House:
    """The gateway, its clients and its engines."""

    def __init__(self, spec: ClusterSpec | None = None, clock: ManualClock | None = None) -> None:
        self.spec = spec or spec_of()
        self.clock = clock or ManualClock(100.0)
        self.wire = MemoryWire()
        self.network = MemoryNetwork(self.wire)
        self.decisions: list[Decision] = []
        self.gateway = Gateway(self.spec, self.clock, network=self.network, decisions=self.decisions)
        self.asked: list[EngineRequest] = []
        """What reached the engines, in order."""
        for port in range(1, len(self.spec.pools[0].instances) + 1):
            self.network.listen("engine", port, self.asked.append)
        for instance in self.gateway.gate.instances:
            self.gateway.probed(instance, True)

    def client(self) -> MemoryClient:
        return MemoryClient(self.wire, self.gateway.server)

    def ask(self, extra: bytes = b"", *, client: MemoryClient | None = None, headers: bytes = b"") -> MemoryClient:
        """A chat request, pumped as far as it goes."""
        client = client or self.client()
        client.send(post(chat(extra), headers=headers))
        self.wire.pump()
        return client

    def stream(self) -> tuple[MemoryClient, EngineRequest]:
        """A streamed request that has reached an engine, which has begun to answer."""
        client = self.ask(b',"stream":true')
        engine = self.asked[-1]
        engine.start_stream()
        self.wire.pump()
        return client, engine

    def wait(self, seconds: float) -> None:
        """Time passes, tick by tick."""
        for _ in range(round(seconds / TICK_S)):
            self.clock.advance(TICK_S)
            self.gateway.tick()
            self.wire.pump()

    def at_rest(self) -> bool:
        """Nothing is held for anybody."""
        gate = self.gateway.gate
        return (
            not self.gateway.flights
            and gate.in_flight == gate.queued == 0
            and all(i.in_flight == i.own_blocks == i.prefill_tokens == 0 for i in gate.instances)
            and all(upstream.pool.calls_open == 0 for upstream in self.gateway.upstreams.values())
        )

    def ended(self, outcome: Outcome) -> int:
        """Requests that ended so."""
        meters = self.gateway.meters
        return sum(m.count_of(outcome) for m in meters.by_model.values()) + meters.unopened[outcome]
