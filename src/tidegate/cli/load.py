"""`tidegate load`: open-loop traffic against an OpenAI-compatible endpoint, recorded."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer
import uvloop
from rich.console import Console

from tidegate.cli.load_progress import ProgressLine
from tidegate.errors import BadInputError, ExitCode
from tidegate.load.runner import LoadJob, LoadRun
from tidegate.load.target import Target, connection_bound
from tidegate.load.watch import EngineUrl
from tidegate.report.table import run_table
from tidegate.spec.cluster import ClusterSpec, CostSpec, SloSpec
from tidegate.spec.load import load_spec
from tidegate.spec.traffic import LengthSpec, PhaseSpec, TraceSpec, TrafficSpec
from tidegate.traffic.arrivals import pulsed
from tidegate.traffic.figures import figures_of
from tidegate.traffic.record import RunRecord
from tidegate.traffic.schedule import plan, plan_warmup, planned_marks
from tidegate.traffic.store import write_run
from tidegate.units import parse_duration_s, parse_rate_per_s

KEY_VARIABLE: Final = "TIDEGATE_API_KEY"


def _read(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """A quantity parser as Typer wants it: what is wrong becomes a usage error."""

    def read(value: str) -> Any:
        try:
            return parse(value)
        except ValueError as exc:
            raise typer.BadParameter(str(exc)) from exc

    return read


_Duration = Annotated[Any, typer.Option(parser=_read(parse_duration_s), metavar="DURATION", show_default=False)]


def command(
    url: Annotated[str | None, typer.Option(help="The endpoint. [default: http://127.0.0.1:8080]")] = None,
    model: Annotated[str | None, typer.Option(help="The model to ask for. [default: the config's only pool's]")] = None,
    config: Annotated[
        Path | None, typer.Option("-c", "--config", help="Take traffic, SLO, engines and cost from a tidegate.yaml.")
    ] = None,
    rate: Annotated[
        Any, typer.Option(parser=_read(parse_rate_per_s), metavar="RATE", help="Requests a second: 20, 90/min.")
    ] = None,
    duration: _Duration = None,
    arrivals: Annotated[str, typer.Option(help="poisson, constant or gamma.")] = "poisson",
    burstiness: Annotated[float, typer.Option(min=0.01, max=20, help="Of gamma arrivals; 1 is Poisson.")] = 1.0,
    pulse: Annotated[
        str | None, typer.Option(help="FACTOR@START+LENGTH[/PERIOD], e.g. 5@10s+5s or 5@10s+5s/30s.")
    ] = None,
    lengths: Annotated[
        str | None, typer.Option(help="azure-conv, azure-code, mooncake or uniform. [default: azure-conv]")
    ] = None,
    long_share: Annotated[float | None, typer.Option(min=0, max=1, help="Share of very long prompts.")] = None,
    stream_share: Annotated[float | None, typer.Option(min=0, max=1, help="Share of streamed requests.")] = None,
    trace: Annotated[Path | None, typer.Option(help="Replay a recorded trace instead.")] = None,
    trace_format: Annotated[str, typer.Option("--format", help="azure or mooncake.")] = "azure",
    start: _Duration = 0.0,
    speed: Annotated[float, typer.Option(min=0.001, max=1000, help="10 replays ten times faster.")] = 1.0,
    seed: Annotated[int | None, typer.Option(min=0)] = None,
    warmup: Annotated[int | None, typer.Option(min=0, help="Warm-up requests. [default: 100]")] = None,
    engine: Annotated[
        list[str] | None, typer.Option(help="An engine's URL, to read counters from. May be given again.")
    ] = None,
    gpus: Annotated[int, typer.Option(min=0, help="GPUs of each --engine, for cost. 0: not known.")] = 0,
    emulated: Annotated[
        bool | None, typer.Option("--emulated/--no-emulated", help="Verify emulated text. [default: ask the engines]")
    ] = None,
    ignore_eos: Annotated[bool, typer.Option(help="Ask engines for answers of exactly the planned length.")] = True,
    connections: Annotated[int | None, typer.Option(min=1, help="Most connections at once.")] = None,
    timeout: _Duration = 300.0,
    label: Annotated[str, typer.Option(help="A word for the record's name and the report.")] = "",
    out: Annotated[Path, typer.Option(help="Folder for records.")] = Path("runs"),
    json: Annotated[bool, typer.Option("--json", help="Print figures as JSON instead of a table.")] = False,
) -> ExitCode:
    """Drive open-loop traffic against an OpenAI-compatible endpoint and record every request.

    Traffic comes from a config, from --rate and --duration, or from a --trace. The API key is read from
    TIDEGATE_API_KEY. Data goes to stdout, progress to stderr.
    """
    spec = None if config is None else load_spec(config)
    base_dir = Path() if config is None or rate is not None or trace is not None else config.parent
    traffic = TrafficSpec() if spec is None else spec.traffic
    given = {"lengths": _lengths(traffic.lengths, lengths, long_share), "stream_share": stream_share, "seed": seed}
    given |= {"warmup_requests": warmup}
    traffic = msgspec.structs.replace(traffic, **{k: v for k, v in given.items() if v is not None})
    if rate is not None and trace is not None:
        raise BadInputError("both --rate and --trace were given", hint="keep one of them")
    if rate is not None:
        traffic = msgspec.structs.replace(
            traffic, trace=None, phases=_phases(rate, duration, arrivals, burstiness, pulse)
        )
    elif trace is not None:
        traffic = msgspec.structs.replace(traffic, phases=[], trace=_trace(trace, trace_format, start, duration, speed))
    elif spec is None:
        raise BadInputError("no traffic was given", hint="add --rate 20 --duration 30s, --trace FILE or -c FILE")
    plans = plan(traffic, base_dir)
    job = LoadJob(
        target=Target(_url(url, spec), _model(model, spec), os.environ.get(KEY_VARIABLE, "")),
        plans=plans,
        marks=planned_marks(traffic, plans),
        warmup=plan_warmup(traffic),
        seed=traffic.seed,
        connections=connection_bound(connections),
        slo=SloSpec() if spec is None else spec.slo,
        cost=CostSpec() if spec is None else spec.cost,
        label=label,
        timeout_s=timeout,
        engines=_engines(engine or [], gpus, spec),
        emulated=emulated,
        ignore_eos=ignore_eos,
        command=shlex.join(["tidegate", *sys.argv[1:]]),
    )
    return _finish(run_job(job), out, json)


def run_job(job: LoadJob) -> RunRecord | None:
    """Runs a job with progress on stderr; Ctrl-C and SIGTERM end it early. `None` when it never measured."""
    with ProgressLine() as progress:

        async def drive() -> RunRecord | None:
            run = LoadRun(job, progress)
            loop = asyncio.get_running_loop()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, run.stop)
            return await run.run()

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(drive())


def _finish(run: RunRecord | None, out: Path, as_json: bool) -> ExitCode:
    if run is None:
        print("interrupted during warm-up: nothing was measured, nothing written", file=sys.stderr)
        return ExitCode.INTERRUPTED
    path = write_run(run, out)
    figures = figures_of(run)
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(figures), indent=2).decode())
    else:
        Console().print(run_table(figures))
    print(f"record: {path}", file=sys.stderr)
    if run.interrupted:
        return ExitCode.INTERRUPTED
    sound = figures.accounting.balanced is not False and figures.text_faults == 0
    return ExitCode.OK if sound else ExitCode.FAILED


def _lengths(base: LengthSpec, distribution: str | None, long_share: float | None) -> LengthSpec:
    known = ("azure-conv", "azure-code", "mooncake", "uniform")
    if distribution is not None and distribution not in known:
        raise BadInputError(f"--lengths {distribution!r} is not known", hint="one of " + ", ".join(known))
    given = {"distribution": distribution, "long_share": long_share}
    return msgspec.structs.replace(base, **{key: value for key, value in given.items() if value is not None})


def _phases(
    rate: float, duration_s: float | None, arrivals: str, burstiness: float, pulse: str | None
) -> list[PhaseSpec]:
    if duration_s is None or duration_s <= 0:
        raise BadInputError("--rate needs a --duration", hint="add --duration 30s")
    if arrivals not in ("poisson", "constant", "gamma"):
        raise BadInputError(f"--arrivals {arrivals!r} is not known", hint="one of poisson, constant, gamma")
    base = PhaseSpec(
        name="steady",
        duration_s=duration_s,
        rate=rate,
        arrivals=arrivals,  # type: ignore[arg-type]  # checked above
        burstiness=burstiness,
    )
    return [base] if pulse is None else pulsed(base, *parse_pulse(pulse))


def parse_pulse(text: str) -> tuple[float, float, float, float | None]:
    """`5@10s+5s/30s` → (factor, pulse length, first start, period), seconds. Raises `BadInputError`."""
    try:
        factor, _, times = text.partition("@")
        first, _, rest = times.partition("+")
        length, slash, period = rest.partition("/")
        every_s = parse_duration_s(period) if slash else None
        return float(factor), parse_duration_s(length), parse_duration_s(first), every_s
    except ValueError as exc:
        raise BadInputError(
            f"--pulse {text!r} is not FACTOR@START+LENGTH[/PERIOD]: {exc}", hint="write 5@10s+5s or 5@10s+5s/30s"
        ) from exc


def _trace(path: Path, trace_format: str, start_s: float, duration_s: float | None, speed: float) -> TraceSpec:
    if trace_format not in ("azure", "mooncake"):
        raise BadInputError(f"--format {trace_format!r} is not known", hint="azure or mooncake")
    return TraceSpec(
        file=str(path),
        format=trace_format,  # type: ignore[arg-type]  # checked above
        start_s=start_s,
        duration_s=duration_s,
        speed=speed,
    )


def _url(url: str | None, spec: ClusterSpec | None) -> str:
    if url is not None:
        return url
    return "http://127.0.0.1:8080" if spec is None else f"http://{spec.gateway.listen}"


def _model(model: str | None, spec: ClusterSpec | None) -> str:
    if model is not None:
        return model
    pools = [] if spec is None else spec.pools
    if len(pools) == 1:
        return pools[0].model
    raise BadInputError("no model was given", hint="add --model" if not pools else "name one of the config's models")


def _engines(urls: list[str], gpus: int, spec: ClusterSpec | None) -> list[EngineUrl]:
    if urls or spec is None:
        return [EngineUrl(url, gpus=gpus) for url in urls]
    return [
        EngineUrl(instance.url, instance.name, pool.engine.kind, pool.engine.gpus)
        for pool in spec.pools
        for instance in pool.instances
    ]
