"""A whole load run: probe, warm up, drive, watch the engines beside it, and make the record.

In: a `LoadJob`. Out: a `RunRecord`. Stops cleanly when told: what was measured by then is a record too, marked
interrupted.
"""

from __future__ import annotations

import asyncio
import gc
import platform
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, Protocol

from msgspec import Struct, structs

from tidegate import __version__
from tidegate.errors import Outcome, UnavailableError
from tidegate.load.driver import Driver
from tidegate.load.fetch import TIMED_OUT, UNREACHABLE, Fetcher
from tidegate.load.lag import LoopLag, client_bound_why, loop_lag_note
from tidegate.load.prompts import PromptBook
from tidegate.load.target import Target
from tidegate.load.watch import EngineUrl, Watch
from tidegate.spec.cluster import CostSpec, SloSpec
from tidegate.traffic.histogram import Histogram
from tidegate.traffic.plan import PlannedRequest
from tidegate.traffic.record import PhaseMark, RequestRecord, RunRecord
from tidegate.traffic.store import run_id

_TICK_S: Final = 0.5
WARMUP_CONCURRENCY: Final = 50
WARMUP_OUTPUT_TOKENS: Final = 64
"""Warm-up answers are cut to this; long ones would warm nothing more."""


class LoadJob(Struct, kw_only=True):
    """Everything a run needs, fixed before it begins."""

    target: Target
    plans: list[PlannedRequest]
    marks: list[PhaseMark]
    warmup: list[PlannedRequest]
    seed: int
    connections: int
    slo: SloSpec = SloSpec()
    cost: CostSpec = CostSpec()
    label: str = ""
    timeout_s: float = 300.0
    engines: list[EngineUrl] = []
    emulated: bool | None = None
    """Whether engine times come from a model of an engine; `None` asks the engines."""
    ignore_eos: bool = True
    command: str = ""


class Watcher(Protocol):
    """Who is told how a run goes, twice a second."""

    def __call__(self, stage: str, driver: Driver, planned: int) -> None: ...


class LoadRun:
    """One run of a job. Use once."""

    def __init__(self, job: LoadJob, watcher: Watcher | None = None) -> None:
        self._job = job
        self._watcher = watcher
        self._driver: Driver | None = None
        self._book = PromptBook(job.seed, job.target.model, ignore_eos=job.ignore_eos)
        self._watch = Watch(job.engines)
        self.interrupted = False

    def stop(self) -> None:
        """Ends the run early; what is in flight is cancelled and recorded so."""
        self.interrupted = True
        if self._driver is not None:
            self._driver.stop()

    async def run(self) -> RunRecord | None:
        """The record; `None` when stopped before measuring began.

        Raises `UnavailableError` when nobody answers at the target or every warm-up request failed.
        """
        job = self._job
        started_at = datetime.now(UTC)
        await self._probe()
        await self._watch.start()
        try:
            emulated = self._watch.emulated if job.emulated is None else job.emulated
            await self._warm_up(emulated)
            if self.interrupted:
                return None
            await self._watch.mark_start()
            driver, lag = self._new_driver("run", emulated, job.connections), LoopLag()
            lag.start()
            await self._drive("load", driver, job.plans)
            lag.stop()
            await self._watch.mark_end()
        finally:
            await self._watch.close()
        return self._record(driver, lag, emulated, started_at)

    async def _probe(self) -> None:
        target = self._job.target
        fetcher = Fetcher(target.host, target.port)
        status, _ = await fetcher.get("/v1/models", timeout_s=5.0)
        fetcher.close()
        if status in (UNREACHABLE, TIMED_OUT):
            raise UnavailableError(f"nobody answers HTTP at {target.url}", hint="start the server, or check --url")

    async def _warm_up(self, emulated: bool) -> None:
        if not self._job.warmup or self.interrupted:
            return
        plans = [
            structs.replace(plan, output_tokens=min(plan.output_tokens, WARMUP_OUTPUT_TOKENS))
            for plan in self._job.warmup
        ]
        driver = self._new_driver("warm-up", emulated, WARMUP_CONCURRENCY)
        records = await self._drive("warm-up", driver, plans)
        failed = [record for record in records if record.outcome is not Outcome.COMPLETED]
        if len(failed) == len(records) and not self.interrupted:
            first = failed[0]
            raise UnavailableError(
                f"not one of {len(records)} warm-up requests was completed; the first ended as "
                f"{first.outcome.value} ({first.reason}, HTTP {first.status or 'none'})",
                hint="check --model and the server's log",
            )

    def _new_driver(self, purpose: str, emulated: bool, connections: int) -> Driver:
        job = self._job
        return Driver(
            job.target,
            self._book,
            slo_itl_s=job.slo.itl_s,
            connections=min(connections, job.connections),
            timeout_s=job.timeout_s,
            verify_words=emulated,
            purpose=purpose,
        )

    async def _drive(self, stage: str, driver: Driver, plans: list[PlannedRequest]) -> list[RequestRecord]:
        self._driver = driver
        # The plans are many and live to the end; without this every full collection walks them, and sends wait.
        gc.collect()
        gc.freeze()
        ticker = _Ticker(lambda: self._watcher and self._watcher(stage, driver, len(plans)))
        try:
            return await driver.run(plans)
        finally:
            ticker.stop()
            gc.unfreeze()

    def _record(self, driver: Driver, lag: LoopLag, emulated: bool, started_at: datetime) -> RunRecord:
        job = self._job
        end_s = job.marks[-1].end_s
        if self.interrupted:
            end_s = min(end_s, max((record.end_s or 0.0 for record in driver.records), default=end_s))
        stamp = started_at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        run = RunRecord(
            id=run_id(stamp, job.label),
            kind="load",
            label=job.label,
            emulated=emulated,
            started_at=stamp,
            seed=job.seed,
            window_s=(0.0, end_s),
            slo_ttft_s=job.slo.ttft_s,
            slo_itl_s=job.slo.itl_s,
            requests=driver.records,
            phases=[mark for mark in job.marks if mark.start_s < end_s],
            sent=driver.sent,
            in_flight=driver.in_flight,
            warmup_requests=len(job.warmup),
            interrupted=self.interrupted,
            instances=self._watch.records(),
            versions={"tidegate": __version__, "python": platform.python_version()},
            command=job.command,
            hardware=self._watch.hardware,
            gpu_hour_price=job.cost.gpu_hour,
            currency=job.cost.currency,
            prompt_cost_share=job.cost.prompt_share,
        )
        _judge_client(run, driver, lag, job.plans)
        run.notes = _notes(run) + self._watch.notes
        return run


class _Ticker:
    """Calls something twice a second until stopped."""

    def __init__(self, action: Callable[[], object]) -> None:
        self._action = action
        self._handle = asyncio.get_running_loop().call_soon(self._fire)

    def _fire(self) -> None:
        self._action()
        self._handle = asyncio.get_running_loop().call_later(_TICK_S, self._fire)

    def stop(self) -> None:
        self._handle.cancel()
        self._action()


def _judge_client(run: RunRecord, driver: Driver, lag: LoopLag, plans: list[PlannedRequest]) -> None:
    """Fills in pooled gaps, the driver's own lag, offered and achieved rate, and whether the client was the limit."""
    gaps, send_lag = Histogram(), Histogram()
    for record in run.requests:
        gaps.record_all(gap_ms * 1e-3 for gap_ms in record.gaps_ms)
        if record.sent_s is not None:
            send_lag.record(record.sent_s - record.plan.at_s)
    end_s = run.window_s[1]
    due = sum(plan.at_s <= end_s for plan in plans)
    in_time = sum(record.sent_s is not None and record.sent_s <= end_s + 0.05 for record in run.requests)
    run.gaps = gaps.counts
    run.client_lag_p99_s = send_lag.percentile_s(99)
    run.loop_lag_p99_s = lag.histogram.percentile_s(99)
    run.offered_per_s = due / end_s if end_s > 0 else 0.0
    run.achieved_per_s = in_time / end_s if end_s > 0 else 0.0
    share = in_time / due if due and not run.interrupted else None
    run.client_bound_why = client_bound_why(run.client_lag_p99_s, gaps.percentile_s(50), share, driver.held_back)
    run.client_bound = bool(run.client_bound_why)


def _notes(run: RunRecord) -> list[str]:
    """What a reader of the figures must know."""
    notes = [
        (
            f"{run.warmup_requests} warm-up requests with other prompts went before the measured window "
            "and are in no figure; answers that ended after it count for latency, not for throughput"
        )
    ]
    faults = sum(bool(record.text_fault) for record in run.requests)
    if faults:
        notes.append(f"{faults} answers had lost, repeated or foreign text")
    loop_lag = loop_lag_note(run.loop_lag_p99_s, Histogram(run.gaps).percentile_s(50))
    if loop_lag:
        notes.append(loop_lag)
    if run.interrupted:
        notes.append("interrupted: the schedule was not sent whole")
    return notes
