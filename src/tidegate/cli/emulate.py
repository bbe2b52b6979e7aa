"""`tidegate emulate`: an emulated engine with vLLM's face."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated, Any, Final, get_args, get_type_hints
from urllib.parse import urlsplit

import msgspec
import typer

from tidegate.cli.quantity import read
from tidegate.errors import BadInputError, ExitCode
from tidegate.spec import EngineProfile
from tidegate.spec.load import load_spec
from tidegate.twin.emulate.run import Emulation, run
from tidegate.units import parse_count, parse_fraction

DEFAULT_PORT: Final = 8001


_Count = typer.Option(parser=read(parse_count), metavar="COUNT", show_default=False)


def command(
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="0 picks a free one. [default: 8001]")] = None,
    host: Annotated[str, typer.Option()] = "127.0.0.1",
    model: Annotated[str | None, typer.Option(help="What clients call it. [default: the shape's name]")] = None,
    name: Annotated[str | None, typer.Option(help="Name in records. [default: host:port]")] = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="Take the profile from a tidegate.yaml.")
    ] = None,
    instance: Annotated[str | None, typer.Option(help="Which instance of it: name or host:port.")] = None,
    shape: Annotated[str | None, typer.Option(help="Model shape, as in the step tables.")] = None,
    hardware: Annotated[str | None, typer.Option()] = None,
    gpus: Annotated[int | None, typer.Option(min=1)] = None,
    weights: Annotated[str | None, typer.Option(help="bf16, fp8 or mxfp4.")] = None,
    kv_cache: Annotated[str | None, typer.Option(help="bf16 or fp8.")] = None,
    memory_fraction: Annotated[Any, typer.Option(parser=read(parse_fraction), metavar="FRACTION")] = None,
    step_tokens: Annotated[Any, _Count] = None,
    max_sequences: Annotated[Any, _Count] = None,
    context_tokens: Annotated[Any, _Count] = None,
    block_tokens: Annotated[Any, _Count] = None,
    prefix_cache: Annotated[bool | None, typer.Option()] = None,
    startup_s: Annotated[float, typer.Option("--startup-s", min=0, help="Seconds of loading, refusing all.")] = 0.0,
    shutdown_timeout: Annotated[
        float, typer.Option(min=0, help="Seconds that answers may go on after SIGTERM; 0 aborts them, as vLLM does.")
    ] = 0.0,
) -> ExitCode:
    """Run an emulated engine: the twin's instance on the wall clock, behind HTTP, with vLLM's face.

    Its times come from a model of the hardware, not from hardware; whatever is measured on it is labelled emulated.
    """
    profile, served, found_port, found_name = _from_config(config, instance)
    given = {
        "shape": shape, "hardware": hardware, "gpus": gpus, "weights": weights, "kv_cache": kv_cache,
        "memory_fraction": memory_fraction, "step_tokens": step_tokens, "max_sequences": max_sequences,
        "context_tokens": context_tokens, "block_tokens": block_tokens, "prefix_cache": prefix_cache,
    }  # fmt: skip
    profile = _changed(profile, {key: value for key, value in given.items() if value is not None})
    wanted_port = port if port is not None else found_port
    return run(
        Emulation(
            profile=profile,
            model=model or served or profile.shape,
            name=name or found_name or f"{host}:{wanted_port}",
            host=host,
            port=wanted_port,
            startup_s=startup_s,
            shutdown_timeout_s=shutdown_timeout,
        ),
        _say,
        _warn,
    )


def _from_config(path: Path | None, wanted: str | None) -> tuple[EngineProfile, str, int, str]:
    """Profile, model, port and name of one instance of a `tidegate.yaml`, or the defaults."""
    if path is None:
        if wanted is not None:
            raise BadInputError("--instance needs a file to look in", hint="add -c tidegate.yaml")
        return EngineProfile(), "", DEFAULT_PORT, ""
    found = {}
    for pool in load_spec(path).pools:
        for spec in pool.instances:
            address = urlsplit(spec.url)
            found[spec.name or address.netloc] = (pool, address.port or DEFAULT_PORT)
    names = ", ".join(found)
    if wanted is None and len(found) > 1:
        raise BadInputError(f"{path} has {len(found)} instances", hint=f"choose with --instance: {names}")
    name = wanted if wanted is not None else next(iter(found))
    if name not in found:
        raise BadInputError(f"{path} has no instance {name!r}", hint=f"it has {names}")
    pool, port = found[name]
    return pool.engine, pool.model, port, name


def _changed(profile: EngineProfile, given: dict[str, Any]) -> EngineProfile:
    try:
        return msgspec.convert({**msgspec.structs.asdict(profile), **given}, EngineProfile)
    except msgspec.ValidationError as exc:
        raise BadInputError(_as_option(str(exc).replace("`", ""), given)) from exc


def _as_option(problem: str, given: dict[str, Any]) -> str:
    """msgspec's `Expected int >= 1 - at $.step_tokens` in the words of the command line."""
    what, _, field = problem.partition(" - at $.")
    if what.startswith("Invalid enum value"):
        what = f"is none of {', '.join(get_args(get_type_hints(EngineProfile)[field]))}"
    for pattern, words in ((r"Expected \w+ >= ", "must be at least "), (r"Expected \w+ <= ", "must be at most ")):
        what = re.sub(pattern, words, what)
    return f"--{field.replace('_', '-')} {given.get(field)} {what}"


def _say(line: str) -> None:
    print(line, flush=True)


def _warn(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
