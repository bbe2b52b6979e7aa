"""`tidegate demo`: the whole main job on a laptop. Emulated cluster, gateway, a peak, default vs frozen, a report."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from tidegate.cli.demo_cluster import emulated_spec, llamacpp_spec, running, with_policies, write_spec
from tidegate.cli.load import make_folder, run_job
from tidegate.cli.report import write_page
from tidegate.errors import ExitCode, UnavailableError
from tidegate.load.runner import LoadJob
from tidegate.load.target import Target, connection_bound
from tidegate.load.watch import EngineUrl
from tidegate.report.page import page
from tidegate.report.table import comparison_table, run_table
from tidegate.spec import ClusterSpec, SloSpec
from tidegate.traffic.figures import figures_of
from tidegate.traffic.record import RunRecord
from tidegate.traffic.schedule import plan, plan_warmup, planned_marks
from tidegate.traffic.store import write_run
from tidegate.tune.sweep import Trial, sweep
from tidegate.units import format_duration

HEADROOM: Final = 0.9
"""The sweep must keep the SLO times this: a wall clock adds what the twin does not know."""
STEP_TOKENS: Final = (512, 768, 1024, 2048, 8192)
MAX_SEQUENCES: Final = (64, 128, 256)
MAX_PREFILL_TOKENS: Final = (4096, 8192)


class Engine(Enum):
    """What stands behind the gateway."""

    EMULATED = "emulated"
    LLAMACPP = "llamacpp"


def command(
    engine: Annotated[
        Engine, typer.Option(help="Emulated 8×H100 instances, or a real llama.cpp server.")
    ] = Engine.EMULATED,
    rate: Annotated[
        float | None, typer.Option(min=0.2, help="Steady requests a second; the pulse is five times it.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0)] = 1,
    out: Annotated[Path, typer.Option(help="Folder for runs and the report.")] = Path("runs"),
) -> ExitCode:
    """Emulated cluster, gateway, a peak, default vs frozen, a report. Takes about two minutes."""
    console = Console(stderr=True)
    folder = out / f"demo-{datetime.now(UTC):%Y%m%dT%H%M%S}"
    make_folder(folder)
    began_s = time.monotonic()
    if engine is Engine.LLAMACPP:
        runs = _llamacpp(console, folder, rate or 2.0, seed)
    else:
        runs = _emulated(console, folder, rate or 4.0, seed)
    _show(runs, folder, began_s, console)
    return ExitCode.OK


def _emulated(console: Console, folder: Path, rate: float, seed: int) -> list[RunRecord]:
    default = emulated_spec(rate, seed)
    _say(console, "1/4", "two emulated 8×H100 Llama-3.1-70B instances; step times from kernel tables, no GPU here")
    frozen = _sweep(console, with_policies(default))
    first = _run(console, "3/4", default, folder, "default", "engine defaults, no admission")
    second = _run(console, "4/4", frozen, folder, "frozen", "the sweep's winner, behind the gateway's policies")
    return [first, second]


def _llamacpp(console: Console, folder: Path, rate: float, seed: int) -> list[RunRecord]:
    _say(console, "1/2", "a real llama.cpp server with a tiny random model; small rate, real answers")
    return [_run(console, "2/2", llamacpp_spec(rate, seed), folder, "llamacpp", "behind the gateway's policies")]


def _sweep(console: Console, spec: ClusterSpec) -> ClusterSpec:
    """The winner of step budget × sequences × prefill bound, found in the twin before your eyes."""
    _say(console, "2/4", "sweeping step budget, sequences and prefill bound in the twin for the setting to freeze")
    plans = plan(spec.traffic, Path())
    strict = SloSpec(ttft_s=spec.slo.ttft_s * HEADROOM, itl_s=spec.slo.itl_s * HEADROOM)
    judged = msgspec.structs.replace(spec, slo=strict)
    columns = (TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("twin", total=None)

        def progress(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=what)

        trials = sweep(
            judged,
            plans,
            STEP_TOKENS,
            MAX_SEQUENCES,
            MAX_PREFILL_TOKENS,
            marks=planned_marks(spec.traffic, plans),
            progress=progress,
        )
    console.print(_trials_table(trials))
    if not trials[0].feasible:
        raise UnavailableError(
            f"no candidate keeps the SLO at this rate; the nearest is {trials[0].candidate.name}: "
            f"{trials[0].lost_because}",
            hint="try a lower --rate",
        )
    return trials[0].candidate.applied(spec)


def _trials_table(trials: list[Trial]) -> Table:
    """The winner, and for each step budget its nearest loser with the reason: the whole grid would fill the screen."""
    title = f"{len(trials)} candidates, simulated; each must keep {HEADROOM:.0%} of the SLO"
    table = Table(title=title, title_justify="left", show_edge=False)
    for name in ("step", "seqs", "prefill", "goodput", "P99 ITL", "P99 TTFT"):
        table.add_column(name, justify="right")
    table.add_column("")
    seen: set[int] = set()
    for trial in trials:
        if trial.candidate.step_tokens in seen:
            continue
        seen.add(trial.candidate.step_tokens)
        table.add_row(*_trial_cells(trial, winner=trial is trials[0] and trial.feasible))
    return table


def _trial_cells(trial: Trial, *, winner: bool) -> list[str]:
    candidate, figures = trial.candidate, trial.figures
    settings = [str(candidate.step_tokens), str(candidate.max_sequences), str(candidate.max_prefill_tokens)]
    if figures is None:
        return [*settings, "", "", "", _why(trial)]
    measured = [_seconds(figures.itl.p99_s), _seconds(figures.ttft.p99_s)]
    return [*settings, f"{trial.goodput:.0%}", *measured, "[green]wins: frozen[/]" if winner else _why(trial)]


def _why(trial: Trial) -> str:
    return trial.lost_because.split(";")[0].replace(" is above ", " > ").replace(" against ", " < ")


def _seconds(value_s: float | None) -> str:
    return "unknown" if value_s is None else format_duration(value_s)


def _run(console: Console, step: str, spec: ClusterSpec, folder: Path, label: str, what: str) -> RunRecord:
    """Brings the cluster up, drives the peak through it, takes the cluster down, keeps the record."""
    spec_path, logs = folder / f"{label}.yaml", folder / f"{label}-logs"
    logs.mkdir()
    write_spec(spec, spec_path, f"{label}: {what}. Written by tidegate demo.")
    plans = plan(spec.traffic, Path())
    seconds = sum(phase.duration_s for phase in spec.traffic.phases)
    _say(console, step, f"{label}: {what}; {len(plans)} requests over {seconds:.0f} s")
    pool = spec.pools[0]
    gpus = 0 if pool.engine.kind == "llamacpp" else pool.engine.gpus  # the demo's llama.cpp runs on a CPU thread
    with running(spec, spec_path, logs) as url:
        run = run_job(
            LoadJob(
                target=Target(url, pool.model),
                plans=plans,
                marks=planned_marks(spec.traffic, plans),
                warmup=plan_warmup(spec.traffic),
                seed=spec.traffic.seed,
                connections=connection_bound(None),
                slo=spec.slo,
                cost=spec.cost,
                label=label,
                engines=[EngineUrl(i.url, i.name, pool.engine.kind, gpus) for i in pool.instances],
                command="tidegate demo",
            )
        )
    if run is None or run.interrupted:
        raise KeyboardInterrupt
    write_run(run, folder)
    return run


def _show(runs: list[RunRecord], folder: Path, began_s: float, console: Console) -> None:
    figures = [figures_of(run) for run in runs]
    Console().print(comparison_table(*figures) if len(figures) == 2 else run_table(figures[0]))
    report = folder / "report.html"
    write_page(page(runs), report)
    print(f"report: {report.resolve()}")
    _say(console, "done", f"in {format_duration(time.monotonic() - began_s)}; records, specs and logs: {folder}")


def _say(console: Console, step: str, text: str) -> None:
    console.print(f"[bold cyan]{step}[/] {escape(text)}", highlight=False)
