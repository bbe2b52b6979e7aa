"""The emulated engine as a process: loading, serving, and vLLM's ways of stopping.

    loading --startup_s over--> serving --SIGTERM or SIGINT--> stopping --streams ended--> exit
       | SIGTERM, SIGINT: exit at once

While loading, connections are refused, as with vLLM. Stopping with `shutdown_timeout_s` 0 ends every answer at once
with finish reason `abort`; above 0 answers may finish that long while `/health` stays 200 and new requests get
500. Unlike vLLM, which can leave streams silent for ever, what is left at the deadline is aborted in the same way.
A second signal skips the wait.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
from collections.abc import Callable
from typing import Final

import uvloop
from msgspec import Struct

from tidegate.errors import ExitCode, UnavailableError
from tidegate.spec import EngineProfile
from tidegate.transport.server import HttpServer, Limits
from tidegate.twin.cost import StepCost
from tidegate.twin.emulate.engine import Engine
from tidegate.twin.emulate.service import Service
from tidegate.twin.emulate.telemetry import Telemetry
from tidegate.twin.instance import Instance

BODY_BYTES: Final = 256 * 2**20
LAST_BYTES_S: Final = 2.0
"""How long connections may take to read their last bytes once every answer has ended."""


class Emulation(Struct, frozen=True, kw_only=True):
    """Everything an emulated engine is started with."""

    profile: EngineProfile
    model: str
    name: str
    host: str = "127.0.0.1"
    port: int = 8001
    startup_s: float = 0.0
    shutdown_timeout_s: float = 0.0


def run(emulation: Emulation, say: Callable[[str], None], warn: Callable[[str], None]) -> ExitCode:
    """Serves until a signal. `say` gets the ready line; `warn` gets one line if the emulation fell behind.

    Raises `BadInputError` for a profile that cannot run, `UnavailableError` when the port is taken.
    """
    cost = StepCost.for_profile(emulation.profile)
    instance = Instance(emulation.name, emulation.profile, cost)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_Process(emulation, cost, instance, say, warn).serve())


class _Process:
    """One run, from loading to exit."""

    def __init__(
        self,
        emulation: Emulation,
        cost: StepCost,
        instance: Instance,
        say: Callable[[str], None],
        warn: Callable[[str], None],
    ) -> None:
        self._emulation = emulation
        self._cost = cost
        self._instance = instance
        self._say = say
        self._warn = warn
        self._signals: list[signal.Signals] = []
        self._signalled = asyncio.Event()
        self._hurried = asyncio.Event()

    async def serve(self) -> ExitCode:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        if not await self._load():
            return self._exit_code()
        profile, emulation = self._emulation.profile, self._emulation
        engine = Engine(loop, self._instance, Telemetry(profile.context_tokens))
        service = Service(engine, profile, emulation.model, emulation.name, self._cost.peak_flops_per_s)
        server = HttpServer(service, Limits(body_bytes=BODY_BYTES, idle_s=120.0))
        port = await server.start(emulation.host, emulation.port)
        # Requests make no cycles; what is here now stays, and need not be looked at again.
        gc.collect()
        gc.freeze()
        self._say(self._ready_line(port))
        await self._signalled.wait()
        await self._stop(engine, service)
        server.stop_accepting()
        await server.drain(LAST_BYTES_S)
        await server.close()
        self._report_pace(engine)
        return self._exit_code()

    def _on_signal(self, number: signal.Signals) -> None:
        if self._signals:
            self._hurried.set()
        self._signals.append(number)
        self._signalled.set()

    def _exit_code(self) -> ExitCode:
        return ExitCode.INTERRUPTED if signal.SIGINT in self._signals else ExitCode.OK

    async def _load(self) -> bool:
        """Holds the port, unserved, for `startup_s`. False when a signal came first."""
        emulation = self._emulation
        if emulation.startup_s > 0:
            with _held_port(emulation.host, emulation.port):
                try:
                    async with asyncio.timeout(emulation.startup_s):
                        await self._signalled.wait()
                except TimeoutError:
                    pass
        return not self._signals

    async def _stop(self, engine: Engine, service: Service) -> None:
        service.stopping = True
        if self._emulation.shutdown_timeout_s > 0 and engine.jobs:
            idle = asyncio.Event()
            engine.on_idle = idle.set
            try:
                async with asyncio.timeout(self._emulation.shutdown_timeout_s):
                    await _first(idle, self._hurried)
            except TimeoutError:
                pass
        engine.abort_all()
        engine.stop()

    def _ready_line(self, port: int) -> str:
        profile, emulation = self._emulation.profile, self._emulation
        return (
            f"emulate: {emulation.name} ready on http://{emulation.host}:{port} — model {emulation.model},"
            f" {profile.shape} {profile.weights} on {profile.gpus}×{profile.hardware} (emulated),"
            f" {self._instance.pool.total * profile.block_tokens:,} KV tokens"
        )

    def _report_pace(self, engine: Engine) -> None:
        pace = engine.telemetry.pace
        if not pace.kept:
            self._warn(
                f"emulate: {self._emulation.name} did not keep pace: {pace.late_steps} of {pace.steps} steps ended"
                f" later than they were long, by {pace.longest_lag_s:.2f} s at most; its figures are this machine's"
            )


def _held_port(host: str, port: int) -> socket.socket:
    """A socket that is bound but does not listen: clients are refused, and nobody else gets the port."""
    held = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        held.bind((host, port))
    except OSError as exc:
        held.close()
        raise UnavailableError(
            f"cannot listen on {host}:{port}: {exc.strerror}", hint="choose another port, or stop what holds this one"
        ) from exc
    return held


async def _first(*events: asyncio.Event) -> None:
    """Waits for whichever event comes first."""
    tasks = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
