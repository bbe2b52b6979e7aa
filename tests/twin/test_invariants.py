"""Nothing is lost or doubled: requests and KV blocks, after every single event of runs in which much goes wrong."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tidegate.spec import ClusterSpec, EngineProfile, GatewaySpec, InstanceSpec, PoolSpec, QueueSpec
from tidegate.traffic.plan import PlannedRequest
from tidegate.twin.calibration import Calibration
from tidegate.twin.faults import Fault
from tidegate.twin.invariants import check_blocks, check_requests
from tidegate.twin.shell import Shell

ENGINE = EngineProfile(step_tokens=512, max_sequences=32, context_tokens=2048)
REQUEST = st.tuples(st.floats(0, 8), st.integers(1, 1500), st.integers(1, 400), st.booleans())
FAULT = st.tuples(st.sampled_from(["die", "restart", "slow"]), st.floats(0, 10), st.integers(0, 1), st.floats(0.5, 4))
KINDS = ("vllm", "sglang")


def cluster(kind: str) -> ClusterSpec:
    urls = [InstanceSpec(url=f"http://127.0.0.1:{8001 + i}") for i in range(2)]
    engine = replace(ENGINE, kind=kind)
    gateway = GatewaySpec(queue=QueueSpec(max_requests=20))
    return ClusterSpec(pools=[PoolSpec(model="m", instances=urls, engine=engine)], gateway=gateway)


@pytest.mark.parametrize("kind", KINDS)
@given(
    requests=st.lists(REQUEST, min_size=1, max_size=60),
    faults=st.lists(FAULT, max_size=4),
    gateways=st.integers(1, 3),
    leaves=st.dictionaries(st.integers(0, 59), st.floats(0, 10), max_size=10),
    lagging=st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_requests_and_blocks_are_conserved_at_every_event(
    kind: str,
    requests: list[tuple[float, int, int, bool]],
    faults: list[tuple[str, float, int, float]],
    gateways: int,
    leaves: dict[int, float],
    lagging: bool,
) -> None:
    plans = [
        PlannedRequest(i, at_s, prompt, output, stream=stream)
        for i, (at_s, prompt, output, stream) in enumerate(sorted(requests))
    ]
    shell = Shell(
        cluster(kind),
        plans,
        calibration=Calibration(front_chunk_s=2e-4, ingest_s=0.01) if lagging else None,
        kv_capacity_tokens=4096,
        faults=[Fault(what, at_s, number, factor, 2.0) for what, at_s, number, factor in faults],
        gateways=gateways,
        checking=True,
    )
    shell.run(cancels=leaves)
    assert len(shell.records) == len(plans)
    assert {record.plan.index for record in shell.records} == set(range(len(plans)))
    assert all(ledger.in_flight == ledger.own_blocks == 0 for server in shell.servers for ledger in server.ledgers)


def test_a_lost_request_and_a_lost_block_are_seen() -> None:
    shell = Shell(cluster("vllm"), [])
    with pytest.raises(RuntimeError, match="3 requests arrived, 2 ended and 0 are under way"):
        check_requests(3, 2, [shell.gate], 1.0)
    engine = shell.servers[0].instance
    check_blocks(engine, 1.0)
    engine.pool.take(5)
    with pytest.raises(RuntimeError, match="idle, and 5 blocks are held"):
        check_blocks(engine, 1.0)
