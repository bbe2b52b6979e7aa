"""`tidegate simulate`: a cluster and its traffic in the twin, on a virtual clock."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer

from tidegate.cli.overrides import load_with
from tidegate.cli.trials import Score, Trial, interval, run_trial, run_trials, seeded, varied, ways_out
from tidegate.errors import BadInputError
from tidegate.spec import ClusterSpec, TraceSpec, TrafficSpec
from tidegate.traffic.figures import Figures, RunFigures, Spread, figures_of
from tidegate.traffic.plan import PlannedRequest
from tidegate.traffic.record import RunRecord
from tidegate.traffic.schedule import plan, planned_marks
from tidegate.traffic.store import run_id, write_run
from tidegate.tune.explain import explanation
from tidegate.twin.calibrationfile import read_calibration
from tidegate.twin.cluster import simulate
from tidegate.twin.faults import parse_fault
from tidegate.units import format_duration, parse_duration_s


def command(
    config: Annotated[Path, typer.Option("--config", "-c", help="The cluster.")] = Path("tidegate.yaml"),
    trace: Annotated[
        Path | None, typer.Option(help="Replay this trace (Azure .csv, Mooncake .jsonl) instead of the file's traffic.")
    ] = None,
    start: Annotated[str, typer.Option(help="Where in the trace to begin, as 5m.")] = "0s",
    duration: Annotated[str, typer.Option(help="How much of the trace to play, in its own time; all by default.")] = "",
    speed: Annotated[float, typer.Option(min=0.001, max=1000, help="Play the trace faster.")] = 1.0,
    calibration: Annotated[
        Path | None, typer.Option(help="Constants that `tidegate calibrate` wrote; by default the bare tables.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Replace one value of the file: engine.step_tokens=768.")
    ] = None,
    fault: Annotated[
        list[str] | None, typer.Option(help="die@2m:1, restart@2m:1:90s, slow@2m:1:1.5:60s (time, instance from 0).")
    ] = None,
    gateways: Annotated[int, typer.Option(min=1, max=64, help="Gateways before the same engines.")] = 1,
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="Runs with so many seeds; 95 % intervals are told.")] = 1,
    sensitivity: Annotated[bool, typer.Option("--sensitivity", help="Each setting lowered and raised alone.")] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Where the SLO is missed: what binds, and ways out, each simulated.")
    ] = False,
    jobs: Annotated[int, typer.Option(min=1, max=256, help="Processes for --seeds, --sensitivity, --explain.")] = 1,
    no_admission: Annotated[bool, typer.Option("--no-admission", help="Forward every request at once.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print all figures as JSON, in base units.")] = False,
    out: Annotated[Path | None, typer.Option(help="Keep the run in a new folder below this one.")] = None,
    label: Annotated[str, typer.Option(help="What to call the run.")] = "twin",
) -> None:
    """Run a cluster and its traffic in the twin, on a virtual clock."""
    spec, base_dir = load_with(config, settings or []), config.parent if trace is None else Path()
    spec = msgspec.structs.replace(spec, traffic=_traced(spec.traffic, trace, start, duration, speed))
    trial = Trial(
        name="as it is",
        spec=spec,
        base_dir=str(base_dir),
        calibration=None if calibration is None else read_calibration(calibration),
        faults=tuple(fault or []),
        gateways=gateways,
        admission=False if no_admission else None,
    )
    requests = plan(spec.traffic, base_dir)
    run = _play(trial, requests, label)
    figures = figures_of(run)
    if out is not None:
        print(f"run kept in {write_run(run, out)}", file=sys.stderr)
    extras: dict[str, list[Score]] = {}
    if seeds > 1:
        extras["seeds"] = run_trials(seeded(trial, seeds), jobs)
    if sensitivity:
        extras["sensitivity"] = run_trials(varied(trial), jobs)
    if json:
        if explain:
            extras["ways_out"] = run_trials(ways_out(trial), jobs)
        _print_json(figures, extras)
        return
    why = explain_lines(trial, requests, jobs) if explain else []
    print("\n".join([*table(spec, figures), *extra_lines(extras), *why]))


def _print_json(figures: RunFigures, extras: dict[str, list[Score]]) -> None:
    """The figures alone, or beside what else was asked for."""
    shown = {"figures": figures, **extras} if extras else figures
    print(msgspec.json.format(msgspec.json.encode(shown), indent=2).decode())


def extra_lines(extras: dict[str, list[Score]]) -> list[str]:
    """Seeds and settings, for people."""
    lines = seed_lines(extras["seeds"]) if "seeds" in extras else []
    if "sensitivity" in extras:
        lines += score_lines("settings, one at a time", extras["sensitivity"])
    return lines


def _play(trial: Trial, requests: list[PlannedRequest], label: str) -> RunRecord:
    """The run itself, with progress on stderr."""
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    meter = _Meter(sys.stderr.isatty())
    run = simulate(
        trial.spec,
        requests,
        admission=trial.admission,
        marks=planned_marks(trial.spec.traffic, requests),
        calibration=None if trial.calibration is None else trial.calibration.calibration(),
        faults=[parse_fault(text) for text in trial.faults],
        gateways=trial.gateways,
        label=label,
        run_id=run_id(started_at, label),
        started_at=started_at,
        progress=meter.show,
    )
    meter.clear()
    run.command = "tidegate " + " ".join(sys.argv[1:])
    return run


def seed_lines(scores: list[Score]) -> list[str]:
    """Means and 95 % confidence intervals over seeds."""
    lines = [f"over {len(scores)} seeds, mean ± half of the 95 % interval"]
    for name, values, unit in (
        ("P99 TTFT", [score.ttft_p99_s for score in scores], 1e3),
        ("P99 ITL", [score.itl_p99_s for score in scores], 1e3),
        ("goodput", [score.goodput for score in scores], 1e2),
    ):
        known = [value * unit for value in values if value is not None]
        if known:
            mean, half = interval(known)
            lines.append(f"  {name:<12} {mean:.2f} ± {half:.2f} {'%' if unit == 1e2 else 'ms'}")
    return lines


def score_lines(title: str, scores: list[Score]) -> list[str]:
    """Scores as a table, each beside the first."""
    lines = [title, f"  {'':<46} {'P99 TTFT':>12} {'P99 ITL':>12} {'goodput':>9} {'preempted':>9} {'KV peak':>8}"]
    for score in scores:
        if score.why:
            lines.append(f"  {score.name:<46} {score.why}")
            continue
        ttft = "none" if score.ttft_p99_s is None else format_duration(score.ttft_p99_s)
        itl = "none" if score.itl_p99_s is None else format_duration(score.itl_p99_s)
        lines.append(
            f"  {score.name:<46} {ttft:>12} {itl:>12} {_percent(score.goodput):>9} {score.preemptions or 0:>9}"
            f" {_percent(score.kv_peak):>8}"
        )
    return lines


def explain_lines(trial: Trial, requests: list[PlannedRequest], jobs: int) -> list[str]:
    """Why the SLO is missed, and which relaxations, simulated, keep it."""
    now = run_trial(trial)
    if now.meets(trial.spec):
        return ["the SLO is kept: P99 TTFT and P99 ITL are inside and 99 % of what was sent met it"]
    ways = ways_out(trial)
    scores = run_trials(ways, jobs)
    kept = [score for way, score in zip(ways, scores) if score.meets(way.spec)]
    lines = [f"why: {line}" for line in explanation(trial.spec, requests)]
    lines += score_lines("ways out, each simulated", [now, *scores])
    if not kept:
        return [*lines, "none of them alone keeps the SLO"]
    return [*lines, "each of these alone keeps the SLO: " + "; ".join(score.name for score in kept)]


def _traced(traffic: TrafficSpec, trace: Path | None, start: str, duration: str, speed: float) -> TrafficSpec:
    """The traffic with the trace in its place. What would change nothing without one is refused."""
    if trace is None:
        for flag, given in (("--start", start != "0s"), ("--duration", bool(duration)), ("--speed", speed != 1.0)):
            if given:
                hint = "add --trace FILE, or change the file's traffic"
                raise BadInputError(f"{flag} has no use without --trace", hint=hint)
        return traffic
    formats: dict[str, Literal["azure", "mooncake"]] = {".csv": "azure", ".jsonl": "mooncake"}
    if trace.suffix not in formats:
        raise BadInputError(f"{trace}: neither an Azure .csv nor a Mooncake .jsonl", hint="name it by its format")
    try:
        start_s, duration_s = parse_duration_s(start), parse_duration_s(duration) if duration else None
    except ValueError as exc:
        raise BadInputError(f"--start or --duration: {exc}") from exc
    if duration_s is not None and duration_s <= 0:
        raise BadInputError(f"--duration {duration} plays nothing", hint="give a length above zero, as 10m")
    replay = TraceSpec(
        file=str(trace), format=formats[trace.suffix], start_s=start_s, duration_s=duration_s, speed=speed
    )
    return msgspec.structs.replace(traffic, trace=replay, phases=[])


class _Meter:
    """Progress on stderr: a line that rewrites itself on a terminal, and nothing elsewhere."""

    def __init__(self, live: bool) -> None:
        self._live = live

    def show(self, now_s: float, ended: int, planned: int) -> None:
        if self._live:
            print(f"\r{format_duration(now_s)} simulated, {ended} of {planned} requests ", end="", file=sys.stderr)

    def clear(self) -> None:
        if self._live:
            print("\r\033[K", end="", file=sys.stderr)


def table(spec: ClusterSpec, figures: RunFigures) -> list[str]:
    """The run's figures for people, one aligned line each. Definitions: `tidegate.traffic.figures`."""
    total = figures.total
    rows = [
        ("requests", f"{total.sent} sent: " + ", ".join(f"{n} {name}" for name, n in total.outcomes.items())),
        ("throughput", _rates(total)),
        ("goodput", "unknown" if total.goodput_share is None else f"{total.goodput_share:.1%} met every SLO"),
        ("TTFT", _spread(total.ttft)),
        ("ITL", _spread(total.itl)),
        ("preemptions", "unknown" if figures.preemptions is None else str(figures.preemptions)),
        ("KV peak", _percent(figures.kv_peak_fraction)),
        ("MFU", _percent(figures.mfu)),
        ("cost", _cost(figures)),
    ]
    count = sum(len(pool.instances) for pool in spec.pools)
    title = f"{figures.label}: {count} simulated instances, {format_duration(total.duration_s)} of traffic"
    slo = f"SLO TTFT {format_duration(figures.slo_ttft_s)}, ITL {format_duration(figures.slo_itl_s)}"
    return [title, slo, *(f"  {name:<12} {text}" for name, text in rows), *(f"note: {note}" for note in figures.notes)]


def _rates(total: Figures) -> str:
    if total.requests_per_s is None or total.output_tokens_per_s is None:
        return "unknown"
    return f"{total.requests_per_s:.2f} requests/s, {total.output_tokens_per_s:.0f} output tokens/s"


def _spread(spread: Spread) -> str:
    if spread.p50_s is None or spread.p99_s is None or spread.max_s is None:
        return "nothing seen"
    named = (("P50", spread.p50_s), ("P99", spread.p99_s), ("max", spread.max_s))
    return ", ".join(f"{name} {format_duration(value_s)}" for name, value_s in named)


def _percent(share: float | None) -> str:
    return "unknown" if share is None else f"{share:.1%}"


def _cost(figures: RunFigures) -> str:
    if figures.cost_per_m_output is None:
        return "unknown"
    return f"{figures.cost_per_m_output:.2f} {figures.currency} per million output tokens"
