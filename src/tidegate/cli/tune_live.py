"""The live half of `tidegate tune`: emulated engines and a gateway started per setting, the scenario driven through."""

from __future__ import annotations

import socket
import tempfile
from pathlib import Path

import msgspec

from tidegate.cli.demo_cluster import running, write_spec
from tidegate.cli.load import run_job
from tidegate.load.runner import LoadJob
from tidegate.load.target import Target, connection_bound
from tidegate.load.watch import EngineUrl
from tidegate.spec import ClusterSpec, InstanceSpec
from tidegate.traffic.record import RunRecord
from tidegate.traffic.schedule import plan, plan_warmup, planned_marks
from tidegate.tune.live import LiveTrial, Proof, prove
from tidegate.tune.search import Found
from tidegate.tune.space import Setting
from tidegate.tune.trial import Case, Judge, TwinTrial
from tidegate.tune.verdict import rank


def prove_on_emulated(
    case: Case, found: Found, *, count: int, gpu_minutes: float | None, error: float, seed: int
) -> Proof:
    """Runs the winner and the next best on emulated engines here. Their times come from the twin's own cost model:
    what is proved is the gateway and the wall clock, not the hardware."""
    budget_s = float("inf") if gpu_minutes is None else gpu_minutes * 60
    live = LiveTrial(case, lambda spec, number: _run(spec, case.base_dir, number), budget_s)
    shortlist = _shortlist(found, count)

    def twin(factor: float) -> Judge:
        return TwinTrial(msgspec.structs.replace(case, step_factor=factor))

    return prove(shortlist, twin, live, seed=seed, error=error)


def _shortlist(found: Found, count: int) -> list[Setting]:
    """The winner, the other finalists that held, then the best of the ranking."""
    settings = [] if found.winner is None else [found.winner.setting]
    settings += [final.setting for final in found.finals if final.feasible]
    settings += [judged.setting for judged in sorted(found.ranking, key=rank) if judged.feasible]
    kept: list[Setting] = []
    for setting in settings:
        if setting not in kept:
            kept.append(setting)
    return kept[:count]


def _run(spec: ClusterSpec, base_dir: Path, seed: int) -> RunRecord:
    """One setting, from start to end of its processes."""
    traffic = msgspec.structs.replace(spec.traffic, seed=seed)
    placed = _placed(msgspec.structs.replace(spec, traffic=traffic))
    plans = plan(traffic, base_dir)
    pool = placed.pools[0]
    with tempfile.TemporaryDirectory(prefix="tidegate-trial-") as folder:
        path = Path(folder) / "trial.yaml"
        write_spec(placed, path, "One live trial of tidegate tune.")
        with running(placed, path, Path(folder)) as url:
            run = run_job(
                LoadJob(
                    target=Target(url, pool.model),
                    plans=plans,
                    marks=planned_marks(traffic, plans),
                    warmup=plan_warmup(traffic),
                    seed=seed,
                    connections=connection_bound(None),
                    slo=placed.slo,
                    cost=placed.cost,
                    label="trial",
                    engines=[
                        EngineUrl(one.url, one.name, pool.engine.kind, pool.engine.gpus) for one in pool.instances
                    ],
                    command="tidegate tune",
                )
            )
    if run is None or run.interrupted:
        raise KeyboardInterrupt
    return run


def _placed(spec: ClusterSpec) -> ClusterSpec:
    """The same cluster on free ports of this host, with its first pool alone."""
    pool = spec.pools[0]
    here = [
        InstanceSpec(name=f"engine-{n}", url=f"http://127.0.0.1:{_free_port()}") for n in range(len(pool.instances))
    ]
    gateway = msgspec.structs.replace(
        spec.gateway, listen=f"127.0.0.1:{_free_port()}", admin=f"127.0.0.1:{_free_port()}"
    )
    pools = [msgspec.structs.replace(pool, instances=here)]
    return msgspec.structs.replace(spec, pools=pools, gateway=gateway, tenants=[])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
