"""From a `TrafficSpec` to the list of requests that will be sent, fixed before the run begins.

In: a spec and the folder its trace path is relative to. Out: `PlannedRequest`s in order of `at_s`. The same spec
and seed give the same list, for load driver and twin alike.
"""

from __future__ import annotations

from pathlib import Path

from tidegate.errors import BadInputError
from tidegate.rng import Streams
from tidegate.spec.traffic import TraceSpec, TrafficSpec
from tidegate.traffic.arrivals import marks_of, send_times
from tidegate.traffic.lengths import LengthSource
from tidegate.traffic.plan import PlannedRequest
from tidegate.traffic.record import PhaseMark
from tidegate.traffic.traces import MOONCAKE_BLOCK_TOKENS, read_trace

TRACE_PHASE = "trace"
WARMUP_PHASE = "warm-up"


def plan(spec: TrafficSpec, base_dir: Path) -> list[PlannedRequest]:
    """Every measured request of a run. Raises `BadInputError` when the spec sends nothing or is contradictory."""
    if spec.trace is not None and spec.phases:
        raise BadInputError("traffic has both phases and a trace", hint="keep one of them")
    if spec.trace is not None:
        return _replayed(spec, spec.trace, base_dir)
    if not spec.phases:
        raise BadInputError("traffic has neither phases nor a trace", hint="add traffic.phases or traffic.trace")
    requests = _drawn(spec)
    if not requests:
        raise BadInputError("the traffic's phases send no request at all", hint="raise a rate or lengthen a phase")
    return requests


def plan_warmup(spec: TrafficSpec) -> list[PlannedRequest]:
    """`warmup_requests` requests with the run's lengths but other draws, so that no measured prompt is warmed."""
    lengths = LengthSource(spec.lengths, Streams(spec.seed), purpose="warm-up/")
    requests = []
    for index in range(spec.warmup_requests):
        prompt_tokens, output_tokens = lengths.draw()
        requests.append(PlannedRequest(index, 0.0, prompt_tokens, output_tokens, phase=WARMUP_PHASE))
    return requests


def planned_marks(spec: TrafficSpec, requests: list[PlannedRequest]) -> list[PhaseMark]:
    """Where the phases of a planned run lie; a trace is one phase that ends with the slice asked for."""
    if spec.trace is None:
        return marks_of(spec.phases)
    end_s = requests[-1].at_s if requests else 0.0
    if spec.trace.duration_s is not None:
        end_s = max(end_s, spec.trace.duration_s / spec.trace.speed)
    return [PhaseMark(TRACE_PHASE, 0.0, end_s)]


def _drawn(spec: TrafficSpec) -> list[PlannedRequest]:
    streams = Streams(spec.seed)
    lengths = LengthSource(spec.lengths, streams)
    streaming = streams.stream("streaming")
    requests = []
    for index, (at_s, phase) in enumerate(send_times(spec.phases, streams)):
        prompt_tokens, output_tokens = lengths.draw()
        requests.append(
            PlannedRequest(
                index=index,
                at_s=at_s,
                prompt_tokens=prompt_tokens,
                output_tokens=output_tokens,
                phase=phase,
                stream=streaming.chance(spec.stream_share),
            )
        )
    return requests


def _replayed(spec: TrafficSpec, trace: TraceSpec, base_dir: Path) -> list[PlannedRequest]:
    streaming = Streams(spec.seed).stream("streaming")
    return [
        PlannedRequest(
            index=index,
            at_s=row.at_s,
            prompt_tokens=row.prompt_tokens,
            output_tokens=row.output_tokens,
            phase=TRACE_PHASE,
            stream=streaming.chance(spec.stream_share),
            prefix_hashes=row.prefix_hashes,
            prefix_block_tokens=MOONCAKE_BLOCK_TOKENS,
        )
        for index, row in enumerate(read_trace(trace, base_dir))
    ]
