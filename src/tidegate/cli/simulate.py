"""`tidegate simulate`: a cluster and its traffic in the twin, on a virtual clock."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer

from tidegate.errors import BadInputError
from tidegate.spec import ClusterSpec, TraceSpec, TrafficSpec, load_spec
from tidegate.traffic.figures import Figures, RunFigures, Spread, figures_of
from tidegate.traffic.schedule import plan, planned_marks
from tidegate.traffic.store import run_id, write_run
from tidegate.twin.calibrationfile import read_calibration
from tidegate.twin.cluster import simulate
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
    no_admission: Annotated[bool, typer.Option("--no-admission", help="Forward every request at once.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print all figures as JSON, in base units.")] = False,
    out: Annotated[Path | None, typer.Option(help="Keep the run in a new folder below this one.")] = None,
    label: Annotated[str, typer.Option(help="What to call the run.")] = "twin",
) -> None:
    """Run a cluster and its traffic in the twin, on a virtual clock."""
    spec = load_spec(config)
    base_dir = config.parent
    if trace is not None:
        spec = msgspec.structs.replace(spec, traffic=_traced(spec.traffic, trace, start, duration, speed))
        base_dir = Path()
    requests = plan(spec.traffic, base_dir)
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    meter = _Meter(sys.stderr.isatty())
    run = simulate(
        spec,
        requests,
        admission=False if no_admission else None,
        marks=planned_marks(spec.traffic, requests),
        calibration=None if calibration is None else read_calibration(calibration).calibration(),
        label=label,
        run_id=run_id(started_at, label),
        started_at=started_at,
        progress=meter.show,
    )
    meter.clear()
    run.command = "tidegate " + " ".join(sys.argv[1:])
    figures = figures_of(run)
    if out is not None:
        print(f"run kept in {write_run(run, out)}", file=sys.stderr)
    if json:
        print(msgspec.json.format(msgspec.json.encode(figures), indent=2).decode())
    else:
        print("\n".join(table(spec, figures)))


def _traced(traffic: TrafficSpec, trace: Path, start: str, duration: str, speed: float) -> TrafficSpec:
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
