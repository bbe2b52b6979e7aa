"""What the gate's policies keep when far more comes than fits, shown in the twin on two emulated 8×H100 instances."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from msgspec.structs import replace

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
    TenantSpec,
    TrafficSpec,
)
from tidegate.traffic.figures import RunFigures, figures_of
from tidegate.traffic.plan import PlannedRequest
from tidegate.traffic.record import RequestRecord
from tidegate.traffic.schedule import plan, planned_marks
from tidegate.twin.cluster import simulate

CAPACITY_PER_S = 20.0
"""About where two such instances begin to refuse at this mix of lengths."""
KEY = "0" * 64


def _spec(rate: float, seconds: float = 120.0, tenants: tuple[TenantSpec, ...] = ()) -> ClusterSpec:
    engine = EngineProfile(step_tokens=768, max_sequences=128)
    instances = [InstanceSpec(url=f"http://127.0.0.1:{port}") for port in (8001, 8002)]
    return ClusterSpec(
        pools=[PoolSpec(model="m", engine=engine, instances=instances)],
        gateway=GatewaySpec(
            admission=AdmissionSpec(max_in_flight=128), queue=QueueSpec(max_requests=4096, max_wait_s=0.5)
        ),
        tenants=list(tenants),
        traffic=TrafficSpec(
            lengths=LengthSpec(output_max_tokens=256, long_share=0.2),
            phases=[PhaseSpec(name="steady", duration_s=seconds, rate=rate)],
        ),
    )


def _figures(rate: float) -> RunFigures:
    spec = _spec(rate)
    plans = plan(spec.traffic, Path())
    return figures_of(simulate(spec, plans, marks=planned_marks(spec.traffic, plans)))


def _good_per_s(figures: RunFigures, length: str | None = None) -> float:
    part = figures.total if length is None else figures.classes[length]
    assert part.goodput_per_s is not None
    return part.goodput_per_s


def test_goodput_holds_at_ten_times_what_fits_in_every_length_class() -> None:
    runs = {factor: _figures(CAPACITY_PER_S * factor) for factor in (1, 1.5, 2, 5, 10)}
    for length in (None, "short", "mixed", "long"):
        best = max(_good_per_s(run, length) for run in runs.values())
        for factor in (2, 5, 10):
            # A class has a few hundred answers in such a run: their count alone scatters by some percent.
            floor = 0.95 if length is None else 0.9
            assert _good_per_s(runs[factor], length) >= floor * best, (length, factor)


def test_who_is_admitted_keeps_the_slo_at_ten_times_what_fits() -> None:
    total = _figures(CAPACITY_PER_S * 10).total
    assert total.ttft.p99_s is not None
    assert total.itl.p99_s is not None
    assert total.ttft.p99_s <= 0.8
    assert total.itl.p99_s <= 0.05


def _for_tenant(rate: float, tenant: str, seed: int, seconds: float) -> list[PlannedRequest]:
    spec = _spec(rate, seconds)
    return [replace(p, tenant=tenant) for p in plan(replace(spec.traffic, seed=seed), Path())]


def _p99_ttft(records: list[RequestRecord], tenant: str) -> float:
    values = sorted(r.ttft_s for r in records if r.plan.tenant == tenant and r.ttft_s is not None)
    return values[int(len(values) * 0.99)]


def _run(*floods: list[PlannedRequest]) -> list[RequestRecord]:
    tenants = tuple(TenantSpec(name=name, key_sha256=[KEY[:-1] + name]) for name in ("a", "b"))
    merged = sorted(itertools.chain(*floods), key=lambda p: p.at_s)
    plans = [replace(p, index=index) for index, p in enumerate(merged)]
    return simulate(_spec(1.0, 120.0, tenants), plans).requests


def test_a_tenant_at_ten_times_its_share_does_not_push_another_out() -> None:
    quiet = _for_tenant(CAPACITY_PER_S * 0.3, "a", 1, 120.0)
    fair = _run(quiet, _for_tenant(CAPACITY_PER_S * 0.5, "b", 2, 120.0))
    flood = _run(quiet, _for_tenant(CAPACITY_PER_S * 5.0, "b", 2, 120.0))
    served = [sum(r.first_token_s is not None for r in run if r.plan.tenant == "a") for run in (fair, flood)]
    assert served[1] >= 0.85 * served[0]
    assert _p99_ttft(flood, "a") <= 1.1 * _p99_ttft(fair, "a")


@pytest.mark.parametrize("rate", [CAPACITY_PER_S * 0.25])
def test_nobody_is_refused_while_there_is_room(rate: float) -> None:
    assert set(_figures(rate).total.outcomes) == {"completed"}
