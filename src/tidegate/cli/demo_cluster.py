"""The demo's cluster: its spec, and the processes that are it."""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import yaml

from tidegate.node.process import Child, answers
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

EMULATED_MODEL: Final = "llama-3.1-70b"
LLAMACPP_MODEL: Final = "tiny"
READY_PATIENCE_S: Final = 60.0
NICENESS: Final = 15
"""All of it shares a few cores; the load driver is the instrument and must not wait for what it measures."""


def emulated_spec(rate: float, seed: int) -> ClusterSpec:
    """Two emulated 8×H100 Llama-3.1-70B instances with the engine's defaults, no admission, and the peak."""
    return ClusterSpec(
        pools=[PoolSpec(model=EMULATED_MODEL, instances=_instances(2))],
        gateway=_gateway(AdmissionSpec(enabled=False)),
        traffic=TrafficSpec(
            seed=seed,
            lengths=LengthSpec(output_max_tokens=256, long_share=0.2),
            phases=_peak(rate, steady_s=18.0, pulse_s=12.0, after_s=15.0),
        ),
    )


def llamacpp_spec(rate: float, seed: int) -> ClusterSpec:
    """One real llama.cpp server with a tiny random model, behind the gateway's policies, and a small peak."""
    engine = EngineProfile(kind="llamacpp", context_tokens=16_384)
    return ClusterSpec(
        pools=[PoolSpec(model=LLAMACPP_MODEL, instances=_instances(1), engine=engine)],
        gateway=_gateway(AdmissionSpec(max_in_flight=8, max_prefill_tokens=8192)),
        traffic=TrafficSpec(
            seed=seed,
            warmup_requests=20,
            lengths=LengthSpec(
                distribution="uniform",
                prompt_min_tokens=32,
                prompt_max_tokens=96,
                output_max_tokens=64,
                long_share=0.2,
                long_min_tokens=256,
                long_max_tokens=512,
            ),
            phases=_peak(rate, steady_s=10.0, pulse_s=5.0, after_s=10.0),
        ),
    )


def with_policies(spec: ClusterSpec) -> ClusterSpec:
    """The same cluster with admission on; the sweep sets its bounds."""
    return msgspec.structs.replace(spec, gateway=_gateway(AdmissionSpec(), spec.gateway))


def write_spec(spec: ClusterSpec, path: Path, comment: str) -> None:
    """Writes a spec that `tidegate check`, `gateway`, `emulate` and `load` take as it is."""
    text = yaml.safe_dump(msgspec.to_builtins(spec), sort_keys=False, allow_unicode=True)
    path.write_text(f"# {comment}\n{text}", encoding="utf-8")


@contextlib.contextmanager
def running(spec: ClusterSpec, spec_path: Path, logs: Path) -> Iterator[str]:
    """Starts the engines and the gateway of `spec`, waits until all are ready, yields the gateway's URL; ends all."""
    with contextlib.ExitStack() as stack:
        for pool in spec.pools:
            for instance in pool.instances:
                port = int(instance.url.rpartition(":")[2])
                argv = _engine_argv(pool.engine.kind, spec_path, instance.name, port)
                child = stack.enter_context(
                    Child(instance.name, argv, logs / f"{instance.name}.log", niceness=NICENESS)
                )
                child.wait_ready(lambda port=port: answers("127.0.0.1", port), READY_PATIENCE_S)  # type: ignore[misc]
        gateway = stack.enter_context(
            Child("gateway", [*_tidegate("gateway"), "-c", str(spec_path)], logs / "gateway.log", niceness=NICENESS)
        )
        admin_port = int(spec.gateway.admin.rpartition(":")[2])
        gateway.wait_ready(lambda: answers("127.0.0.1", admin_port), READY_PATIENCE_S)
        yield f"http://{spec.gateway.listen}"


def _engine_argv(kind: str, spec_path: Path, name: str, port: int) -> list[str]:
    if kind == "llamacpp":
        from tidegate.engines import llamacpp_server

        return llamacpp_server.command(port, model_name=LLAMACPP_MODEL)
    return [*_tidegate("emulate"), "-c", str(spec_path), "--instance", name]


def _tidegate(command: str) -> list[str]:
    return [sys.executable, "-m", "tidegate", command]


def _peak(rate: float, *, steady_s: float, pulse_s: float, after_s: float) -> list[PhaseSpec]:
    return [
        PhaseSpec(name="steady", duration_s=steady_s, rate=rate),
        PhaseSpec(name="pulse", duration_s=pulse_s, rate=5 * rate),
        PhaseSpec(name="after", duration_s=after_s, rate=rate),
    ]


def _instances(count: int) -> list[InstanceSpec]:
    return [InstanceSpec(name=f"engine-{n}", url=f"http://127.0.0.1:{_free_port()}") for n in range(1, count + 1)]


def _gateway(admission: AdmissionSpec, like: GatewaySpec | None = None) -> GatewaySpec:
    """`like`'s addresses, or free ones: the demo must not collide with what runs here."""
    listen = f"127.0.0.1:{_free_port()}" if like is None else like.listen
    admin = f"127.0.0.1:{_free_port()}" if like is None else like.admin
    return GatewaySpec(listen=listen, admin=admin, admission=admission, queue=QueueSpec(max_wait_s=0.3))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
