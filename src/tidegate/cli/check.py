"""`tidegate check`: validates a `tidegate.yaml` and says what it amounts to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from tidegate.spec import ClusterSpec, PoolSpec, TrafficSpec, load_spec
from tidegate.units import format_duration, write_duration, write_number


def command(
    path: Annotated[Path, typer.Argument(help="The file to check.")] = Path("tidegate.yaml"),
    json: Annotated[
        bool, typer.Option("--json", help="Print the effective values, defaults included, in base units.")
    ] = False,
) -> None:
    """Validate a tidegate.yaml. Every problem goes to stderr with its line; exit code 3 if there is one."""
    spec = load_spec(path)
    if json:
        print(msgspec.json.format(msgspec.json.encode(spec), indent=2).decode())
        return
    print(f"{path} is valid")
    for line in summary(spec):
        print(line)


def summary(spec: ClusterSpec) -> list[str]:
    """What a spec amounts to, one aligned line per thing, details indented."""
    lines: list[str] = []
    for pool in spec.pools:
        lines += _pool(pool)
    gateway, queue, admission = spec.gateway, spec.gateway.queue, spec.gateway.admission
    lines += [f"gateway    {gateway.listen}, admin {gateway.admin}"]
    held = f"at most {admission.max_in_flight} requests and {admission.max_prefill_tokens} prompt tokens per instance"
    lines += [f"admission  {held}" if admission.enabled else "admission  off: everything is forwarded at once"]
    wait = f"at most {queue.max_requests} requests for {write_duration(queue.max_wait_s)}"
    lines += [f"queue      {wait}" if queue.max_requests else "queue      none"]
    lines += [f"SLO        TTFT {write_duration(spec.slo.ttft_s)}, ITL {write_duration(spec.slo.itl_s)}"]
    names = ", ".join(f"{tenant.name} ({tenant.priority})" for tenant in spec.tenants)
    lines += [f"tenants    {names or 'none: every key is accepted'}"]
    return lines + _traffic(spec.traffic)


def _pool(pool: PoolSpec) -> list[str]:
    engine = pool.engine
    count = len(pool.instances)
    made_of = f"{count} {'instance' if count == 1 else 'instances'} of {engine.gpus} × {engine.hardware}"
    tuned = f"{engine.kind}, weights {engine.weights}, KV {engine.kv_cache}"
    budget = f"{engine.step_tokens} tokens a step, {engine.max_sequences} sequences, context {engine.context_tokens}"
    lines = [f"pool       {pool.model}: {made_of} ({tuned}; {budget})"]
    width = max(len(instance.name) for instance in pool.instances)
    return lines + [f"             {instance.name:<{width}}  {instance.url}" for instance in pool.instances]


def _traffic(traffic: TrafficSpec) -> list[str]:
    if traffic.trace is not None:
        speed = f" at {write_number(traffic.trace.speed)}× speed"
        return [f"traffic    trace {traffic.trace.file} ({traffic.trace.format}){speed}"]
    if not traffic.phases:
        return ["traffic    none"]
    lasting_s = sum(phase.duration_s for phase in traffic.phases)
    planned = sum(phase.duration_s * phase.rate for phase in traffic.phases)
    count = len(traffic.phases)
    head = f"{count} {'phase' if count == 1 else 'phases'}, {format_duration(lasting_s)}, about {planned:,.0f} requests"
    width = max(len(phase.name) for phase in traffic.phases)
    return [f"traffic    {head}"] + [
        f"             {phase.name:<{width}}  {write_number(phase.rate)}/s for {write_duration(phase.duration_s)},"
        f" {phase.arrivals}"
        for phase in traffic.phases
    ]
