"""Looks at the engines beside a run, once a second: what they counted, how full their KV cache got, who died.

An exit is seen as a refused connection after an answered one, or as a process that began anew. A reading that is
merely late is no exit: a busy engine may be slow to answer.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from msgspec import Struct

from tidegate.load.counters import EMULATED_PATH, METRICS_PATH, Reading, Tally, began_anew, read_emulated, read_metrics
from tidegate.load.fetch import TIMED_OUT, UNREACHABLE, Fetcher
from tidegate.load.target import parse_http_url
from tidegate.traffic.record import InstanceRecord

_PERIOD_S: Final = 1.0


class EngineUrl(Struct, frozen=True):
    """An engine to watch. `gpus` 0 means not known, unless the engine says it."""

    url: str
    name: str = ""
    kind: str = "vllm"
    gpus: int = 0


class _Engine:
    """One watched engine."""

    def __init__(self, where: EngineUrl) -> None:
        host, port, prefix = parse_http_url(where.url)
        self.where = where
        self.name = where.name or f"{host}:{port}"
        self.fetcher = Fetcher(host, port, prefix)
        self.tally = Tally()
        self.last: Reading | None = None
        self.alive = False
        self.emulated = False
        self.exits = 0
        self.kv_peak: float | None = None
        self.kv_peak_before = 0.0
        self.since_s = 0.0
        self.observed_s = 0.0

    async def look(self) -> None:
        """One reading, taken in."""
        status, reading = await self._read()
        if status == UNREACHABLE and self.alive:
            self.alive = False
            self.exits += 1
        if reading is None:
            return
        if self.alive and self.last is not None and began_anew(self.last, reading):
            self.exits += 1
        self.alive = True
        self.last = reading
        self.tally.add(reading)
        self._take_kv(reading)

    def _take_kv(self, reading: Reading) -> None:
        """Use at each look; the engine's own peak counts once it exceeds what it was when the window began."""
        used = reading.kv_used_fraction
        if reading.kv_peak_fraction is not None and reading.kv_peak_fraction > self.kv_peak_before:
            used = reading.kv_peak_fraction
        if used is not None:
            self.kv_peak = max(self.kv_peak or 0.0, used)

    async def _read(self) -> tuple[int, Reading | None]:
        if self.emulated or self.last is None:
            status, body = await self.fetcher.get(EMULATED_PATH)
            reading = read_emulated(body) if status == 200 else None
            self.emulated = self.emulated or reading is not None
            if reading is not None or status in (UNREACHABLE, TIMED_OUT):
                return status, reading
        status, body = await self.fetcher.get(METRICS_PATH)
        return status, read_metrics(body, self.where.kind) if status == 200 else None

    def restart(self) -> None:
        """What follows is measured; what came before is not."""
        self.tally.restart()
        self.exits = 0
        self.kv_peak = None
        self.kv_peak_before = (self.last.kv_peak_fraction if self.last else None) or 0.0
        self.since_s = time.monotonic()

    def record(self) -> InstanceRecord:
        """What it did since `restart`."""
        last = self.last or Reading()
        preemptions = self.tally.grown("preemptions")
        return InstanceRecord(
            name=self.name,
            gpus=self.where.gpus or last.gpus or 0,
            steps=int(self.tally.grown("steps") or 0),
            busy_s=self.tally.grown("busy_s") or 0.0,
            preemptions=None if preemptions is None else int(preemptions),
            exits_unasked=self.exits,
            model_flops=self.tally.grown("model_flops"),
            peak_flops_per_s=last.peak_flops_per_s,
            kv_peak_fraction=self.kv_peak,
            prompt_tokens=int(self.tally.grown("prompt_tokens") or 0),
            output_tokens=int(self.tally.grown("output_tokens") or 0),
            observed_s=self.observed_s,
        )


class Watch:
    """Watches any number of engines until closed."""

    def __init__(self, engines: list[EngineUrl]) -> None:
        self._engines = [_Engine(engine) for engine in engines]
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """First readings; then one a second."""
        await self._look()
        if self._engines:
            self._task = asyncio.create_task(self._keep_looking())

    async def mark_start(self) -> None:
        """The measured window begins."""
        await self._look()
        for engine in self._engines:
            engine.restart()

    async def mark_end(self) -> None:
        """The last answer has ended: last readings."""
        await self._look()
        for engine in self._engines:
            engine.observed_s = time.monotonic() - engine.since_s

    async def close(self) -> None:
        """Stops watching."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for engine in self._engines:
            engine.fetcher.close()

    def records(self) -> list[InstanceRecord]:
        """One record for each engine that gave a reading."""
        return [engine.record() for engine in self._engines if engine.last is not None]

    @property
    def emulated(self) -> bool:
        """Whether any watched engine says that it is an emulation."""
        return any(engine.emulated for engine in self._engines)

    @property
    def hardware(self) -> str:
        """What the engines say they run on."""
        return ", ".join(sorted({engine.last.hardware for engine in self._engines if engine.last} - {""}))

    @property
    def notes(self) -> list[str]:
        """What a reader of the figures must know about their source."""
        notes = [f"no counters from {e.where.url}" for e in self._engines if e.last is None]
        behind = [e.name for e in self._engines if e.last is not None and e.last.kept_pace is False]
        if behind:
            notes.append(
                f"{', '.join(behind)}: this machine was too slow for the emulation to keep its pace; "
                "latencies are longer than the model's"
            )
        return notes

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(_PERIOD_S)
            await self._look()

    async def _look(self) -> None:
        await asyncio.gather(*(engine.look() for engine in self._engines))
