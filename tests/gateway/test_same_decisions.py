"""The same events give the same decisions: a twin run, replayed through the gateway's own protocol objects.

The twin simulates a pulse that queues, expires and refuses. Its decision log says when each request came, when its
engine gave the first token and when it was done. The gateway gets the same as bytes, at those times on a manual clock:
HTTP requests from clients in memory, SSE from engines in memory. Both gates must write the same log, line for line.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tidegate.clock import ManualClock
from tidegate.gateway.shell import TICK_S, Gateway
from tidegate.policy.gate import Decision
from tidegate.spec import (
    AdmissionSpec,
    ClusterSpec,
    EngineProfile,
    GatewaySpec,
    InstanceSpec,
    LengthSpec,
    PhaseSpec,
    PoolSpec,
    QueueSpec,
    TrafficSpec,
)
from tidegate.testing.house import post
from tidegate.testing.memory_transport import EngineRequest, MemoryClient, MemoryNetwork, MemoryWire
from tidegate.traffic.plan import PlannedRequest
from tidegate.traffic.schedule import plan
from tidegate.twin.shell import Shell, sample_of

DELTA = b'data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":" w"}}]}\n\n'
LAST = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":""},"finish_reason":"length"}]}\n\n'
DONE = b"data: [DONE]\n\n"


def _spec(stream_share: float) -> ClusterSpec:
    return ClusterSpec(
        pools=[
            PoolSpec(
                model="m",
                engine=EngineProfile(step_tokens=1024, max_sequences=64),
                instances=[InstanceSpec(url=f"http://engine:{n}", name=f"e{n}") for n in (1, 2)],
            )
        ],
        gateway=GatewaySpec(
            admission=AdmissionSpec(max_in_flight=24, max_prefill_tokens=8192),
            queue=QueueSpec(max_requests=12, max_wait_s=0.3),
            # The engines are scraped once, at the start: both sides know them by that and by their own counts.
            scrape_interval_s=3600.0,
        ),
        traffic=TrafficSpec(
            seed=3,
            stream_share=stream_share,
            lengths=LengthSpec(output_max_tokens=96, long_share=0.2),
            phases=[
                PhaseSpec(name="steady", duration_s=8, rate=6),
                PhaseSpec(name="pulse", duration_s=6, rate=60),
                PhaseSpec(name="after", duration_s=6, rate=6),
            ],
        ),
    )


class Replay:
    """The gateway, given what the twin's log tells."""

    def __init__(self, spec: ClusterSpec, plans: list[PlannedRequest], shell: Shell) -> None:
        self.clock = ManualClock(0.0)
        self.wire = MemoryWire()
        self.network = MemoryNetwork(self.wire)
        self.log: list[Decision] = []
        self.gateway = Gateway(spec, self.clock, network=self.network, decisions=self.log)
        self.spec, self.plans = spec, plans
        self.clients: dict[int, MemoryClient] = {}
        self.engines: dict[int, EngineRequest] = {}
        self.ticks = 0
        for port in (1, 2):
            self.network.listen("engine", port, self._asked)
        for server, instance in zip(shell.servers, self.gateway.gate.instances, strict=True):
            self.gateway.probed(instance, True)
            self.gateway.sampled(instance, sample_of(server.instance, 0.0))

    def _asked(self, request: EngineRequest) -> None:
        self.engines[int(json.loads(request.body)["user"])] = request

    def advance_to(self, instant_s: float) -> None:
        """Time passes; ticks come on their grid."""
        while (self.ticks + 1) * TICK_S < instant_s:
            self.tick()
        self.clock.advance_to(instant_s)

    def tick(self) -> None:
        self.ticks += 1
        self.clock.advance_to(self.ticks * TICK_S)
        self.gateway.tick()
        self.wire.pump()

    def play(self, event: str, ticket: int) -> None:
        asked = self.plans[ticket - 1]
        if event == "open":
            self.clients[ticket] = MemoryClient(self.wire, self.gateway.server)
            self.clients[ticket].send(post(self._body(ticket, asked)))
        elif event == "first_token" and asked.stream:
            self.engines[ticket].start_stream()
            self.engines[ticket].piece(DELTA)
        elif event == "finished":
            self._finish(self.engines[ticket], asked)
        elif event == "client_gone":
            self.clients[ticket].leave()
        self.wire.pump()

    def _body(self, ticket: int, asked: PlannedRequest) -> bytes:
        """A body whose prompt is as many bytes as the twin's gate is told."""
        wanted = int(asked.prompt_tokens * self.spec.gateway.bytes_per_token)
        text = "x" * wanted
        messages = [{"role": "user", "content": text}]
        extra = len(json.dumps(messages, separators=(",", ":"))) - wanted
        messages = [{"role": "user", "content": text[extra:]}]
        body = {
            "model": "m", "messages": messages, "user": str(ticket), "max_tokens": asked.output_tokens,
            "stream": asked.stream,
        }  # fmt: skip
        return json.dumps(body, separators=(",", ":")).encode()

    def _finish(self, engine: EngineRequest, asked: PlannedRequest) -> None:
        usage = {"prompt_tokens": asked.prompt_tokens, "completion_tokens": asked.output_tokens}
        if asked.stream:
            engine.piece(LAST)
            engine.piece(b'data: {"id":"c","choices":[],"usage":' + json.dumps(usage).encode() + b"}\n\n")
            engine.piece(DONE)
            engine.finish()
        else:
            engine.answer(json.dumps({"id": "c", "choices": [{"index": 0}], "usage": usage}).encode())


@pytest.mark.parametrize("stream_share", [1.0, 0.6], ids=["streams", "streams and whole answers"])
def test_a_twin_run_replayed_through_the_gateway_takes_the_same_decisions(stream_share: float) -> None:
    spec = _spec(stream_share)
    plans = plan(spec.traffic, Path())
    leavers = {p.index: p.at_s + 0.05 + 0.4 * (p.index % 7) for p in plans if p.index % 11 == 0}
    twin_log: list[Decision] = []
    shell = Shell(spec, plans, log=twin_log)
    shell.run(cancels=leavers)
    words = " ".join(line[3] for line in twin_log)
    for needed in ("attempt", "wait", "queue_timeout", "client_cancelled", "completed", "cancel "):
        assert needed in words, f"the run shows too little: no {needed}"

    replay = Replay(spec, plans, Shell(spec, plans))
    done: set[tuple[str, int]] = set()
    for now, event, ticket, _ in twin_log:
        if event == "tick":
            replay.advance_to(now)
            if replay.ticks * TICK_S < now:
                replay.tick()
            continue
        replay.advance_to(now)
        if not plans[ticket - 1].stream and event == "first_token":
            continue  # a whole answer's first token comes with its end
        if (event, ticket) not in done:
            done.add((event, ticket))
            replay.play(event, ticket)

    assert len(replay.log) == len(twin_log)
    for ours, twins in zip(replay.log, twin_log, strict=True):
        assert ours == twins
