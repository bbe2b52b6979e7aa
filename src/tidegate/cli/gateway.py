"""`tidegate gateway`: the data path in front of the engines a spec names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tidegate.errors import BadInputError, ExitCode
from tidegate.gateway.signals import StopSignals

if TYPE_CHECKING:
    from tidegate.console import Console
    from tidegate.gateway.shell import Gateway
    from tidegate.spec import ClusterSpec

_ADDRESS: Final = re.compile(r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")


def command(
    config: Annotated[Path, typer.Option("-c", "--config", help="The cluster document.")] = Path("tidegate.yaml"),
    listen: Annotated[str, typer.Option(help="HOST:PORT to serve on, instead of the document's.")] = "",
    admin: Annotated[str, typer.Option(help="HOST:PORT of the admin port, instead of the document's.")] = "",
    json_log: Annotated[bool, typer.Option("--json-log", help="Log lines as JSON.")] = False,
    access_log: Annotated[bool, typer.Option(help="One log line per request.")] = True,
    console: Annotated[bool, typer.Option(help="The live page on the admin port.")] = True,
) -> ExitCode:
    """Run the gateway until SIGTERM or Ctrl-C: the first drains, the second ends at once.

    SIGHUP reads the document again and takes its tenants over: keys, limits, weights and classes.
    """
    signals = StopSignals()
    # The rest loads only now, so that a signal during the load is not lost.
    from tidegate.gateway.process import run
    from tidegate.spec import load_spec

    def read() -> ClusterSpec:
        return with_addresses(load_spec(config), listen, admin)

    extend = _console if console else None
    return run(read(), signals, json_log=json_log, log_requests=access_log, reread=read, extend=extend)


def _console(gateway: Gateway) -> Console:
    from tidegate.console import Console

    return Console(gateway)


def with_addresses(spec: ClusterSpec, listen: str, admin: str) -> ClusterSpec:
    """The spec with the addresses of the command line. Raises `BadInputError` for what is no address."""
    from msgspec.structs import replace

    gateway = spec.gateway
    if listen:
        gateway = replace(gateway, listen=_checked(listen, "--listen"))
    if admin:
        gateway = replace(gateway, admin=_checked(admin, "--admin"))
    return replace(spec, gateway=gateway)


def _checked(address: str, option: str) -> str:
    match = _ADDRESS.fullmatch(address)
    if match is None or int(match.group(2)) > 65_535:
        raise BadInputError(f"{option} {address!r} is not HOST:PORT", hint=f"write for example {option} 127.0.0.1:8080")
    return address
