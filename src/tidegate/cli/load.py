"""`tidegate load`: open-loop traffic against an OpenAI-compatible endpoint, recorded."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
import tempfile
from pathlib import Path
from typing import Final

import msgspec
import uvloop
from rich.console import Console

from tidegate.cli import load_options as options
from tidegate.cli.load_progress import ProgressLine
from tidegate.errors import BadInputError, ExitCode, Outcome, UnavailableError
from tidegate.load.runner import LoadJob, LoadRun
from tidegate.load.target import DEFAULT_CONNECTIONS, Target, connection_bound
from tidegate.load.watch import EngineUrl
from tidegate.report.table import run_table
from tidegate.spec.cluster import ClusterSpec, CostSpec, SloSpec
from tidegate.spec.load import load_spec
from tidegate.traffic.figures import figures_of
from tidegate.traffic.record import RunRecord
from tidegate.traffic.schedule import plan, plan_warmup, planned_marks
from tidegate.traffic.store import write_run

KEY_VARIABLE: Final = "TIDEGATE_API_KEY"


def command(
    url: options.Url = None,
    model: options.Model = None,
    config: options.Config = None,
    rate: options.Rate = None,
    duration: options.Duration = None,
    arrivals: options.Arrivals = "poisson",
    burstiness: options.Burstiness = 1.0,
    pulse: options.Pulse = None,
    lengths: options.Lengths = None,
    long_share: options.LongShare = None,
    stream_share: options.StreamShare = None,
    trace: options.Trace = None,
    trace_format: options.TraceFormat = "azure",
    start: options.Start = None,
    speed: options.Speed = 1.0,
    seed: options.Seed = None,
    warmup: options.Warmup = None,
    engine: options.Engines = None,
    gpus: options.Gpus = 0,
    emulated: options.Emulated = None,
    ignore_eos: options.IgnoreEos = True,
    connections: options.Connections = None,
    timeout: options.Timeout = None,
    label: options.Label = "",
    out: options.Out = Path("runs"),
    json: options.AsJson = False,
) -> ExitCode:
    """Drive open-loop traffic against an OpenAI-compatible endpoint and record every request.

    Traffic comes from a config, from --rate and --duration, or from a --trace. The API key is read from
    TIDEGATE_API_KEY. Data goes to stdout, progress to stderr.
    """
    asked = options.Asked(
        rate=rate, duration_s=duration, arrivals=arrivals, burstiness=burstiness, pulse=pulse, lengths=lengths,
        long_share=long_share, stream_share=stream_share, trace=trace, trace_format=trace_format,
        start_s=start or 0.0, speed=speed, seed=seed, warmup=warmup,
    )  # fmt: skip
    spec = None if config is None else load_spec(config)
    job = _job(spec, asked, Path() if config is None else config.parent, _url(url, spec), _model(model, spec))
    job.connections = connection_bound(connections)
    job.engines = _engines(engine or [], gpus, spec)
    job.emulated, job.ignore_eos, job.label = emulated, ignore_eos, label
    job.timeout_s = job.timeout_s if timeout is None else timeout
    make_folder(out)
    return _finish(run_job(job), out, json)


def make_folder(folder: Path) -> None:
    """Makes the folder for records, and writes there once: no run may find out at its end that it is lost.

    Raises `UnavailableError`.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as exc:
        raise UnavailableError(
            f"runs cannot be kept in {folder}: {exc.strerror or exc}", hint="choose another --out"
        ) from exc


def _job(spec: ClusterSpec | None, asked: options.Asked, config_dir: Path, url: str, model: str) -> LoadJob:
    """The job, with everything planned that will be sent."""
    traffic = options.traffic_of(asked, None if spec is None else spec.traffic)
    # A path on the command line is relative to where the command runs, one in a file to that file.
    plans = plan(traffic, Path() if asked.trace is not None else config_dir)
    return LoadJob(
        target=Target(url, model, os.environ.get(KEY_VARIABLE, "")),
        plans=plans,
        marks=planned_marks(traffic, plans),
        warmup=plan_warmup(traffic),
        seed=traffic.seed,
        connections=DEFAULT_CONNECTIONS,
        slo=SloSpec() if spec is None else spec.slo,
        cost=CostSpec() if spec is None else spec.cost,
        command=shlex.join(["tidegate", *sys.argv[1:]]),
    )


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
    if run.requests and figures.total.outcomes.get(Outcome.COMPLETED.value, 0) == 0:
        first = run.requests[0].outcome.value
        print(
            f"error: not one of {len(run.requests)} requests was completed; the first ended as {first}", file=sys.stderr
        )
        return ExitCode.FAILED
    sound = figures.accounting.balanced is not False and figures.text_faults == 0
    return ExitCode.OK if sound else ExitCode.FAILED


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
