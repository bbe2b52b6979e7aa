"""The options of `tidegate load` and the traffic they describe."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from tidegate.cli.quantity import read
from tidegate.errors import BadInputError
from tidegate.spec.traffic import LengthSpec, PhaseSpec, TraceSpec, TrafficSpec
from tidegate.traffic.arrivals import pulsed
from tidegate.units import parse_duration_s, parse_rate_per_s


def _some_time(text: str) -> float:
    """A duration above zero, in seconds. Raises `ValueError`."""
    value_s = parse_duration_s(text)
    if value_s <= 0:
        raise ValueError(f"{text!r} is no time at all; write for example 800ms, 15s, 2m or 1h30m")
    return value_s


def _duration(text: str, parse: Callable[[str], float] = _some_time) -> Any:
    return typer.Option(parser=read(parse), metavar="DURATION", help=text)


Url = Annotated[str | None, typer.Option(help="The endpoint. [default: http://127.0.0.1:8080]")]
Model = Annotated[str | None, typer.Option(help="The model to ask for. [default: the config's only pool's]")]
Config = Annotated[
    Path | None, typer.Option("-c", "--config", help="Take traffic, SLO, engines and cost from a tidegate.yaml.")
]
Rate = Annotated[
    Any, typer.Option(parser=read(parse_rate_per_s), metavar="RATE", help="Requests a second: 20, 90/min.")
]
Duration = Annotated[Any, _duration("How long to send, with --rate; how much of a --trace, in its own time.")]
Arrivals = Annotated[str, typer.Option(help="poisson, constant or gamma.")]
Burstiness = Annotated[float, typer.Option(min=0.01, max=20, help="Of gamma arrivals; 1 is Poisson.")]
Pulse = Annotated[str | None, typer.Option(help="FACTOR@START+LENGTH[/PERIOD], e.g. 5@10s+5s or 5@10s+5s/30s.")]
Lengths = Annotated[str | None, typer.Option(help="azure-conv, azure-code, mooncake or uniform.")]
LongShare = Annotated[float | None, typer.Option(min=0, max=1, help="Share of very long prompts.")]
StreamShare = Annotated[float | None, typer.Option(min=0, max=1, help="Share of streamed requests.")]
Trace = Annotated[Path | None, typer.Option(help="Replay a recorded trace instead.")]
TraceFormat = Annotated[str, typer.Option("--format", help="azure or mooncake.")]
Start = Annotated[Any, _duration("Where in the trace to begin.", parse_duration_s)]
Speed = Annotated[float, typer.Option(min=0.001, max=1000, help="10 replays ten times faster.")]
Seed = Annotated[int | None, typer.Option(min=0, help="Same seed, same requests. [default: 1]")]
Warmup = Annotated[int | None, typer.Option(min=0, help="Warm-up requests. [default: 100]")]
Engines = Annotated[
    list[str] | None,
    typer.Option("--engine", help="An engine's URL, to read counters from. May be given again."),
]
Gpus = Annotated[int, typer.Option(min=0, help="GPUs of each --engine, for cost. 0: not known.")]
Emulated = Annotated[
    bool | None, typer.Option("--emulated/--no-emulated", help="Verify emulated text. [default: ask the engines]")
]
IgnoreEos = Annotated[bool, typer.Option(help="Ask engines for answers of exactly the planned length.")]
Connections = Annotated[int | None, typer.Option(min=1, help="Most connections at once.")]
Timeout = Annotated[Any, _duration("When to give up on a request. 300 s unless given.")]
Label = Annotated[str, typer.Option(help="A word for the record's name and the report.")]
Out = Annotated[Path, typer.Option(help="Folder for records.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print figures as JSON instead of a table.")]


class Asked(msgspec.Struct, kw_only=True):
    """What the options say about traffic; `None` where they say nothing."""

    rate: float | None
    duration_s: float | None
    arrivals: str
    burstiness: float
    pulse: str | None
    lengths: str | None
    long_share: float | None
    stream_share: float | None
    trace: Path | None
    trace_format: str
    start_s: float
    speed: float
    seed: int | None
    warmup: int | None


def traffic_of(asked: Asked, configured: TrafficSpec | None) -> TrafficSpec:
    """A config's traffic with the options laid over it. Raises `BadInputError` where they contradict."""
    _refuse_useless(asked)
    base = TrafficSpec() if configured is None else configured
    given = {"stream_share": asked.stream_share, "seed": asked.seed, "warmup_requests": asked.warmup}
    traffic = msgspec.structs.replace(
        base,
        lengths=_lengths(base.lengths, asked.lengths, asked.long_share),
        **{key: value for key, value in given.items() if value is not None},
    )
    if asked.rate is not None:
        return msgspec.structs.replace(traffic, trace=None, phases=_phases(asked, asked.rate))
    if asked.trace is not None:
        return msgspec.structs.replace(traffic, phases=[], trace=_trace(asked, asked.trace))
    if configured is None:
        raise BadInputError("no traffic was given", hint="add --rate 20 --duration 30s, --trace FILE or -c FILE")
    return traffic


_OF_RATE: Final = {"arrivals": "poisson", "burstiness": 1.0, "pulse": None}
_OF_TRACE: Final = {"start_s": 0.0, "speed": 1.0, "trace_format": "azure"}
_FLAGS: Final = {"start_s": "--start", "trace_format": "--format"}


def _refuse_useless(asked: Asked) -> None:
    """Refuses options that would change nothing: who gives one expects it to count."""
    if asked.rate is not None and asked.trace is not None:
        raise BadInputError("both --rate and --trace were given", hint="keep one of them")
    useless = [(name, "--rate") for name, default in _OF_RATE.items() if getattr(asked, name) != default]
    if asked.rate is not None:
        useless = [("burstiness", "--arrivals gamma")] if asked.burstiness != 1.0 and asked.arrivals != "gamma" else []
    if asked.trace is None:
        useless += [(name, "--trace") for name, default in _OF_TRACE.items() if getattr(asked, name) != default]
    if asked.rate is None and asked.trace is None and asked.duration_s is not None:
        useless.append(("duration_s", "--rate or --trace"))
    for name, needs in useless:
        flag = _FLAGS.get(name, f"--{name.removesuffix('_s')}")
        raise BadInputError(f"{flag} has no use without {needs}", hint=f"add {needs}, or change the config's traffic")


def _lengths(base: LengthSpec, distribution: str | None, long_share: float | None) -> LengthSpec:
    known = ("azure-conv", "azure-code", "mooncake", "uniform")
    if distribution is not None and distribution not in known:
        raise BadInputError(f"--lengths {distribution!r} is not known", hint="one of " + ", ".join(known))
    given = {"distribution": distribution, "long_share": long_share}
    return msgspec.structs.replace(base, **{key: value for key, value in given.items() if value is not None})


def _phases(asked: Asked, rate: float) -> list[PhaseSpec]:
    if asked.duration_s is None:
        raise BadInputError("--rate needs a --duration", hint="add --duration 30s")
    if asked.arrivals not in ("poisson", "constant", "gamma"):
        raise BadInputError(f"--arrivals {asked.arrivals!r} is not known", hint="one of poisson, constant, gamma")
    base = PhaseSpec(
        name="steady",
        duration_s=asked.duration_s,
        rate=rate,
        arrivals=asked.arrivals,  # type: ignore[arg-type]  # checked above
        burstiness=asked.burstiness,
    )
    return [base] if asked.pulse is None else pulsed(base, *parse_pulse(asked.pulse))


def parse_pulse(text: str) -> tuple[float, float, float, float | None]:
    """`5@10s+5s/30s` → (factor, pulse length, first start, period), seconds. Raises `BadInputError`."""
    try:
        factor, _, times = text.partition("@")
        first, _, rest = times.partition("+")
        length, slash, period = rest.partition("/")
        every_s = parse_duration_s(period) if slash else None
        return _factor(factor), parse_duration_s(length), parse_duration_s(first), every_s
    except ValueError as exc:
        raise BadInputError(
            f"--pulse {text!r} is not FACTOR@START+LENGTH[/PERIOD]: {exc}", hint="write 5@10s+5s or 5@10s+5s/30s"
        ) from exc


def _factor(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"the factor {text!r} is not a number")
    if value < 0:
        raise ValueError(f"the factor {text} is below 0")
    return value


def _trace(asked: Asked, path: Path) -> TraceSpec:
    if asked.trace_format not in ("azure", "mooncake"):
        raise BadInputError(f"--format {asked.trace_format!r} is not known", hint="azure or mooncake")
    return TraceSpec(
        file=str(path),
        format=asked.trace_format,  # type: ignore[arg-type]  # checked above
        start_s=asked.start_s,
        duration_s=asked.duration_s,
        speed=asked.speed,
    )
