"""A cluster and its traffic simulated, as the `RunRecord` that reports and tuning read.

In: a spec, planned requests, whether the gateway's admission is on. Out: the record; the same input gives the same
record. `started_at` and the id are the caller's: nothing here reads a clock.
"""

from __future__ import annotations

import msgspec

from tidegate import __version__
from tidegate.spec import ClusterSpec
from tidegate.traffic.plan import PlannedRequest
from tidegate.traffic.record import InstanceRecord, PhaseMark, RunRecord
from tidegate.twin.calibration import Calibration
from tidegate.twin.faults import Fault
from tidegate.twin.shell import Progress, Server, Shell


def simulate(
    spec: ClusterSpec,
    plans: list[PlannedRequest],
    *,
    admission: bool | None = None,
    marks: list[PhaseMark] | None = None,
    cancels: dict[int, float] | None = None,
    calibration: Calibration | None = None,
    kv_capacity_tokens: int = -1,
    until_s: float = -1.0,
    label: str = "",
    run_id: str = "twin",
    started_at: str = "",
    progress: Progress | None = None,
    faults: list[Fault] | None = None,
    gateways: int = 1,
) -> RunRecord:
    """Runs `plans` (in order of time) against the first pool of `spec` until every request ended, or to `until_s`.

    `admission` overrides the spec: off forwards every request at once, as a plain balancer would. `marks` are the
    traffic's phases; the measured window is their span, else the span of the arrivals. `kv_capacity_tokens` is what
    the engines told of their KV cache; by default it is estimated. `faults` strike instances
    of the first pool on; `gateways` stand side by side and share what they scrape alone. Raises `BadInputError` for
    profiles without step tables and for plans that cannot be run.
    """
    if admission is not None:
        spec = with_admission(spec, admission)
    shell = Shell(
        spec, plans, calibration=calibration, progress=progress, kv_capacity_tokens=kv_capacity_tokens, faults=faults,
        gateways=gateways,
    )  # fmt: skip
    shell.run(until_s, cancels)
    return record_of(shell, spec, plans, marks or [], label, run_id, started_at)


def with_admission(spec: ClusterSpec, enabled: bool) -> ClusterSpec:
    """`spec` with the gateway's admission switched on or off."""
    admission = msgspec.structs.replace(spec.gateway.admission, enabled=enabled)
    return msgspec.structs.replace(spec, gateway=msgspec.structs.replace(spec.gateway, admission=admission))


def record_of(
    shell: Shell,
    spec: ClusterSpec,
    plans: list[PlannedRequest],
    marks: list[PhaseMark],
    label: str,
    run_id: str,
    started_at: str,
) -> RunRecord:
    """The record of a cluster that was run."""
    end_s = marks[-1].end_s if marks else plans[-1].at_s if plans else 0.0
    engine = spec.pools[0].engine
    offered = len(plans) / end_s if end_s > 0 else 0.0
    return RunRecord(
        id=run_id,
        kind="twin",
        label=label,
        emulated=True,
        started_at=started_at,
        seed=spec.traffic.seed,
        window_s=(marks[0].start_s if marks else 0.0, end_s),
        slo_ttft_s=spec.slo.ttft_s,
        slo_itl_s=spec.slo.itl_s,
        requests=sorted(shell.records, key=lambda record: record.plan.index),
        gaps=shell.gaps.pooled(),
        gaps_by_group=shell.gaps.by_group(),
        phases=marks,
        sent=shell.arrived,
        in_flight=shell.in_flight,
        instances=[_instance_record(server, shell.now) for server in shell.servers],
        client_lag_p99_s=0.0,
        offered_per_s=offered,
        achieved_per_s=offered,
        versions={"tidegate": __version__, "step_table": shell.servers[0].instance.cost.describe()},
        notes=_notes(spec, shell.servers[0].instance.cost.calibration),
        hardware=f"{len(shell.servers)} × {engine.gpus} × {engine.hardware} (simulated)",
        gpu_hour_price=spec.cost.gpu_hour,
        currency=spec.cost.currency,
        prompt_cost_share=spec.cost.prompt_share,
    )


def _instance_record(server: Server, observed_s: float) -> InstanceRecord:
    """All processes that ran there, one after the other."""
    now = server.instance
    lives = [one.statistics() for one in (*server.past, now)]
    return InstanceRecord(
        name=now.name,
        gpus=now.profile.gpus,
        steps=sum(seen.steps for seen in lives),
        busy_s=sum(seen.busy_s for seen in lives),
        preemptions=sum(seen.preemptions for seen in lives),
        exits_unasked=server.exits,
        model_flops=sum(seen.model_flops for seen in lives),
        peak_flops_per_s=now.cost.peak_flops_per_s,
        kv_peak_fraction=max(seen.kv_peak_blocks / seen.capacity_blocks for seen in lives),
        prompt_tokens=sum(seen.prompt_tokens for seen in lives),
        output_tokens=sum(seen.output_tokens for seen in lives),
        observed_s=observed_s,
    )


def _notes(spec: ClusterSpec, calibration: Calibration) -> list[str]:
    notes = ["simulated: step times are sums of measured kernels, uncalibrated; no network, no CPU time of the server"]
    if calibration.values() != Calibration().values():
        notes = ["simulated: step times and the server's CPU time from tables and a calibration; no network"]
    if any(pool.engine.kind == "llamacpp" for pool in spec.pools):
        notes.append("llama.cpp is scheduled as vLLM V1 would; only step times are its own")
    return notes
