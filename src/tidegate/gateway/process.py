"""A gateway as a process: signals, the ready line, the exit code."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys
from collections.abc import Callable
from typing import Final, TextIO

import uvloop
from msgspec.structs import replace

from tidegate.errors import BadInputError, ExitCode
from tidegate.gateway.admin import Extend
from tidegate.gateway.service import Service
from tidegate.gateway.signals import StopSignals
from tidegate.observe.accesslog import AccessLog
from tidegate.observe.logs import set_up
from tidegate.spec import ClusterSpec

GC_THRESHOLDS: Final = (50_000, 20, 20)

logger = logging.getLogger("tidegate.gateway")


def run(
    spec: ClusterSpec,
    signals: StopSignals,
    *,
    json_log: bool = False,
    log_requests: bool = True,
    journal_bytes: int = 0,
    reread: Callable[[], ClusterSpec] | None = None,
    extend: Extend | None = None,
) -> ExitCode:
    """Runs a gateway until a signal. Raises `UnavailableError` when a port is taken.

    `reread` reads the cluster document again; SIGHUP then takes its tenants over. `extend` makes what the admin port
    serves beside health and metrics.
    """
    set_up(json_log)
    out: TextIO | None = sys.stderr if log_requests else None
    return uvloop.run(_serve(spec, signals, AccessLog(out, json_log), journal_bytes, reread, extend))


async def _serve(
    spec: ClusterSpec,
    signals: StopSignals,
    access_log: AccessLog,
    journal_bytes: int,
    reread: Callable[[], ClusterSpec] | None,
    extend: Extend | None,
) -> ExitCode:
    stop, hurry = asyncio.Event(), asyncio.Event()
    signals.attach(asyncio.get_running_loop(), stop, hurry)
    service = Service(spec, access_log=access_log, extend=extend)
    service.gateway.journal_bytes = journal_bytes
    await service.start()
    if reread is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload, service, spec, reread)
    settle_collector()
    sys.stdout.write(_ready_line(service, spec) + "\n")
    sys.stdout.flush()
    await stop.wait()
    await service.stop(hurry)
    return ExitCode.INTERRUPTED if hurry.is_set() else ExitCode.OK


def reload(service: Service, running: ClusterSpec, reread: Callable[[], ClusterSpec]) -> None:
    """Takes the document's tenants over: keys, limits, weights, classes. A document that is wrong changes nothing."""
    try:
        found = reread()
    except BadInputError as exc:
        logger.error("reload refused, nothing changed: %s", exc.message)
        return
    service.gateway.renew_tenants(found.tenants)
    logger.info("reloaded: %d tenants", len(found.tenants))
    if replace(found, tenants=running.tenants) != running:
        logger.warning("the document changed in more than its tenants; the rest takes effect at the next start")


def settle_collector() -> None:
    """Keeps the garbage collector from looking again and again at what lives as long as the process, and from running
    at every burst: requests leave no cycles behind (a test looks), so all there is to find is rare."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def _ready_line(service: Service, spec: ClusterSpec) -> str:
    host, admin_host = (address.rpartition(":")[0] for address in (spec.gateway.listen, spec.gateway.admin))
    gate = service.gateway.gate
    return (
        f"ready: http://{host}:{service.port} serves {', '.join(gate.models())} from {len(gate.instances)} "
        f"instance{'s' if len(gate.instances) != 1 else ''}, admin http://{admin_host}:{service.admin_port}"
    )
