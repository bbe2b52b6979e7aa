"""The twin's instance on the wall clock: one loop timer per step.

Steps follow each other on the engine's own time line; a step is finished by a timer at its end. When the machine is
late, the next step still begins where the last one ended, so that lag is caught up, never added up, and is counted
(`Pace`). Between two late steps the loop gets its turn, so that sockets are served however late it is.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from tidegate.twin.emulate.job import Choice, Job
from tidegate.twin.emulate.telemetry import Telemetry
from tidegate.twin.instance import Instance
from tidegate.twin.sequence import WAITING, Sequence, StepResult


class Engine:
    """Runs jobs on an `Instance`. Everything is called on the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, instance: Instance, telemetry: Telemetry) -> None:
        self.instance = instance
        self.telemetry = telemetry
        self.jobs: set[Job] = set()
        self.on_idle: Callable[[], None] = _nothing
        """Called whenever the last job has left."""
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._begun_s = 0.0
        self._end_s = 0.0
        self._tokens_before = 0
        self._unscheduled: deque[Choice] = deque()
        self._torn: list[Choice] = []

    def now(self) -> float:
        """The clock of arrivals and steps."""
        return self._loop.time()

    def submit(self, job: Job) -> None:
        """Takes a job in."""
        now = self._loop.time()
        self.jobs.add(job)
        for choice in job.choices:
            self.instance.submit(choice.sequence, now)
            self._unscheduled.append(choice)
        if self._timer is None:
            self._begin(max(now, self._end_s))

    def abort(self, job: Job) -> None:
        """The client left: the job's KV blocks are free at the end of the step under way."""
        if job in self.jobs:
            job.gone = True
            self.telemetry.client_aborts += 1
            self._withdraw(job)

    def abort_all(self) -> None:
        """Ends every answer now, with finish reason `abort`."""
        now = self._loop.time()
        for job in list(self.jobs):
            for choice in job.choices:
                if not choice.ended:
                    choice.end("abort")
                    self.telemetry.ended(choice, now)
            self._withdraw(job)

    def stop(self) -> None:
        """No further step."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _withdraw(self, job: Job) -> None:
        now = self._loop.time()
        for choice in job.choices:
            self.instance.abort(choice.sequence, now)
        self._leave(job)

    def _leave(self, job: Job) -> None:
        self.jobs.discard(job)
        if not self.jobs:
            self.on_idle()

    def _begin(self, at_s: float) -> None:
        end_s = self.instance.begin_step(at_s)
        if end_s < 0.0:
            self._timer = None
            return
        self._begun_s, self._end_s = at_s, end_s
        self._note_scheduled(at_s)
        self._timer = self._loop.call_at(end_s, self._finish)

    def _note_scheduled(self, at_s: float) -> None:
        """Remembers when choices left the waiting line, which they do in order."""
        waiting = self._unscheduled
        while waiting and waiting[0].sequence.state != WAITING:
            choice = waiting.popleft()
            choice.scheduled_s = at_s
            choice.cached_tokens = choice.sequence.computed_tokens

    def _finish(self) -> None:
        step_s = self._end_s - self._begun_s
        self.telemetry.pace.note(self._loop.time() - self._end_s, step_s)
        result = self.instance.finish_step()
        for sequence in result.preempted:
            _choice(sequence).torn_s = self._begun_s
        now = max(self._loop.time(), self._end_s)
        for sequence in result.tokens:
            # Per token: a cast or check would cost as much as the rest of this loop.
            self._token(sequence.context, now)  # type: ignore[arg-type]
        self._account(result, step_s)
        self._begin(self._end_s)

    def _account(self, result: StepResult, step_s: float) -> None:
        statistics = self.instance.statistics()
        tokens = statistics.computed_tokens + statistics.output_tokens
        telemetry = self.telemetry
        telemetry.step_tokens.observe(float(tokens - self._tokens_before))
        self._tokens_before = tokens
        # Whoever decoded in this step and the one before waited for exactly this step.
        steady = len(result.tokens) - len(result.first) - len(self._torn)
        if steady > 0:
            telemetry.gap_s.observe(step_s, steady)
        for choice in self._torn:
            telemetry.gap_s.observe(self._end_s - choice.torn_s)
            choice.torn_s = -1.0
        self._torn.clear()

    def _token(self, choice: Choice, now: float) -> None:
        if choice.torn_s >= 0.0:
            self._torn.append(choice)
        if choice.job.gone:
            return
        if choice.made == 0:
            choice.first_s = now
            self.telemetry.first_token_s.observe(now - choice.job.arrived_s)
        choice.token()
        if choice.ended:
            self.telemetry.ended(choice, now)
            if choice.job.answered:
                self._leave(choice.job)


def _choice(sequence: Sequence) -> Choice:
    choice = sequence.context
    assert isinstance(choice, Choice)
    return choice


def _nothing() -> None:
    """No one waits for the engine to be idle."""
