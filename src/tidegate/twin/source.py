"""Where a run's requests come from: a list made beforehand, or draws made while the run goes on.

In: plans, or a `TrafficSpec`. Out: one `Flight` after the other, in order of time. A twelve-hour flood has fifty
million requests, which no list holds in the memory of a laptop; `DrawnSource` yields exactly the requests that
`traffic.schedule.plan` would list for the same spec, one at a time.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable

from tidegate.errors import BadInputError
from tidegate.rng import Stream, Streams
from tidegate.spec import TrafficSpec
from tidegate.spec.traffic import PhaseSpec
from tidegate.traffic.lengths import PROBABILITIES, check_lengths, fitted
from tidegate.traffic.plan import PlannedRequest
from tidegate.twin.flight import Flight, flight_of


class Source:
    """Requests in order of time; `total` is how many there will be, -1 where that is not known beforehand."""

    __slots__ = ("total",)

    def __init__(self, total: int) -> None:
        self.total = total

    def next_flight(self) -> Flight | None:
        """The next request, None after the last."""
        raise NotImplementedError


class ListSource(Source):
    """Planned requests."""

    __slots__ = ("_next", "_plans")

    def __init__(self, plans: list[PlannedRequest]) -> None:
        super().__init__(len(plans))
        self._plans = plans
        self._next = 0

    def next_flight(self) -> Flight | None:
        if self._next >= len(self._plans):
            return None
        self._next += 1
        return flight_of(self._plans[self._next - 1])


class DrawnSource(Source):
    """Phases and lengths of a `TrafficSpec`, drawn as they are needed."""

    __slots__ = (
        "_chance_long", "_chance_stream", "_index", "_lengths", "_long", "_number", "_offset_s", "_output_table",
        "_outputs", "_phase", "_phase_index", "_phases", "_probabilities", "_prompt_table", "_prompts", "_start_s",
        "_stream_share", "_streams", "_times",
    )  # fmt: skip

    def __init__(self, traffic: TrafficSpec) -> None:
        """Raises `BadInputError` for traffic without phases."""
        super().__init__(-1)
        if not traffic.phases or traffic.trace is not None:
            raise BadInputError("only phases can be drawn while a run goes on", hint="give traffic.phases, no trace")
        check_lengths(traffic.lengths)
        lengths = traffic.lengths
        self._streams = Streams(traffic.seed)
        self._lengths = lengths
        self._probabilities = list(PROBABILITIES)
        self._prompt_table: list[int] = []
        self._output_table: list[int] = []
        if lengths.distribution != "uniform":
            table = fitted(lengths.distribution)
            self._prompt_table, self._output_table = table.prompt, table.output
        self._prompts: Callable[[], float] = self._streams.stream("lengths/prompt").random
        self._outputs: Callable[[], float] = self._streams.stream("lengths/output").random
        self._long: Callable[[], float] = self._streams.stream("lengths/long").random
        self._chance_long = lengths.long_share
        self._chance_stream: Callable[[], float] = self._streams.stream("streaming").random
        self._stream_share = traffic.stream_share
        self._phases = traffic.phases
        self._phase_index = -1
        self._start_s = 0.0
        self._index = 0
        self._number = 0
        self._offset_s = 0.0
        self._phase: PhaseSpec = traffic.phases[0]
        self._times: Stream = self._streams.stream("unused")
        self._enter(0, 0.0)

    def next_flight(self) -> Flight | None:
        phase = self._phase
        while self._offset_s >= phase.duration_s or phase.rate == 0:
            if self._phase_index + 1 >= len(self._phases):
                return None
            self._enter(self._phase_index + 1, self._start_s + phase.duration_s)
            phase = self._phase
        at_s = self._start_s + self._offset_s
        self._advance(phase)
        prompt_tokens = self._prompt()
        lengths = self._lengths
        output_tokens = self._draw(
            self._outputs(), self._output_table, lengths.output_min_tokens, lengths.output_max_tokens
        )
        self._index += 1
        streams = self._chance_stream() < self._stream_share
        return Flight(self._index - 1, at_s, prompt_tokens, output_tokens, phase.name, "", streams)

    def skip_to(self, at_s: float) -> None:
        """Draws and drops every request before `at_s`: what comes is what would have come."""
        while self._start_s + self._offset_s < at_s and self.next_flight() is not None:
            pass

    def _enter(self, index: int, start_s: float) -> None:
        phase = self._phases[index]
        self._phase, self._phase_index, self._start_s = phase, index, start_s
        self._times = self._streams.stream(f"arrivals/{index}/{phase.name}")
        self._number = 0
        self._offset_s = 0.0
        if phase.rate > 0 and phase.arrivals != "constant":
            self._offset_s = self._gap(phase)

    def _advance(self, phase: PhaseSpec) -> None:
        if phase.arrivals == "constant":
            self._number += 1
            self._offset_s = self._number / phase.rate
        else:
            self._offset_s += self._gap(phase)

    def _gap(self, phase: PhaseSpec) -> float:
        shape = 1.0 / phase.burstiness**2 if phase.arrivals == "gamma" else 1.0
        if shape == 1.0:
            return -math.log(1.0 - self._times.random()) / phase.rate
        return self._times.gamma(shape, 1 / (phase.rate * shape))

    def _prompt(self) -> int:
        lengths = self._lengths
        # Both are drawn every time, as in `traffic.lengths`.
        ordinary = self._draw(
            self._prompts(), self._prompt_table, lengths.prompt_min_tokens, lengths.prompt_max_tokens
        )  # fmt: skip
        is_long = self._long() < self._chance_long
        share = self._long()
        low = lengths.long_min_tokens
        return low + int(share * (lengths.long_max_tokens - low + 1)) if is_long else ordinary

    def _draw(self, share: float, table: list[int], low: int, high: int) -> int:
        if not table:
            return low + int(share * (high - low + 1))
        knots = self._probabilities
        right = bisect_right(knots, share)
        if right >= len(knots):
            return min(high, max(low, table[-1]))
        left = knots[right - 1]
        value = table[right - 1] + (table[right] - table[right - 1]) * (share - left) / (knots[right] - left)
        return min(high, max(low, round(value)))
