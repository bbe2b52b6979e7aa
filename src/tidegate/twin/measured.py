"""Reads measured runs (the files of a step grid, closed loops, first tokens, replays) and compares the twin with them.

In: JSON files as `bench/fidelity` describes them, and the profile each was measured with. Out: `Measured` points for
`twin.fitting`, and for a recorded run the same figures of the engine and of the twin that replays its send times,
prompt and answer lengths. What a file lacks is a `BadInputError` that names the file and the field.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from tidegate.errors import BadInputError
from tidegate.spec import ClusterSpec, EngineProfile, GatewaySpec, InstanceSpec, PoolSpec, TimeoutsSpec
from tidegate.traffic.plan import PlannedRequest
from tidegate.traffic.record import RunRecord
from tidegate.twin.calibration import Calibration
from tidegate.twin.cluster import simulate
from tidegate.twin.cost import StepCost
from tidegate.twin.fitting import LoopPoint, Measured, StepPoint

NEVER_S: Final = 1e6
FIGURES: Final = ("itl", "e2e", "throughput", "ttft_mean", "ttft_p99")


class Replayed(Struct, frozen=True):
    """One run's figures: seconds, and output tokens per second."""

    itl_s: float
    """Mean gap per token: Σ (last − first token) ÷ Σ (tokens − 1)."""
    e2e_s: float
    """Mean time to the last token."""
    throughput: float
    """Output tokens ÷ the span from the first send to the last end."""
    ttft_mean_s: float
    ttft_p99_s: float
    longest_gap_s: float

    def errors_percent(self, told: Replayed) -> dict[str, float]:
        """How far these are from `told`, by `FIGURES`, in percent."""
        mine = (self.itl_s, self.e2e_s, self.throughput, self.ttft_mean_s, self.ttft_p99_s)
        theirs = (told.itl_s, told.e2e_s, told.throughput, told.ttft_mean_s, told.ttft_p99_s)
        return {name: (one / other - 1) * 100 for name, one, other in zip(FIGURES, mine, theirs)}


def read(path: Path) -> dict[str, Any]:
    """A measured file."""
    try:
        found: dict[str, Any] = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError) as exc:
        raise BadInputError(f"{path}: cannot be read as a measured run: {exc}") from exc
    return found


def add_grid(measured: Measured, path: Path, profile: EngineProfile) -> None:
    """In-process step times: `decode` [{b, ctx, ms}], `prefill` [{p, ms}], `mixed` [{b, p, step_ms}]."""
    told = read(path)
    cost = StepCost.for_profile(profile)
    try:
        for row in told["decode"]:
            if "b" in row:
                measured.decode.append((cost, StepPoint(0, row["b"], row["ctx"], row["ms"] / 1e3)))
        for row in told["mixed"]:
            # The streams beside it stood at about 1,100 tokens; they were filled to 1,024.
            measured.mixed.append((cost, StepPoint(row["p"], row["b"], 1100.0, row["step_ms"] / 1e3)))
    except (KeyError, TypeError) as exc:
        raise BadInputError(f"{path}: no step grid, {exc} is missing") from exc


def add_first_tokens(measured: Measured, path: Path, profile: EngineProfile) -> None:
    """First tokens on an idle server: `rows` [{plen, ttft_ms_median}]."""
    cost = StepCost.for_profile(profile)
    try:
        for row in read(path)["rows"]:
            measured.first_tokens.append((cost, row["plen"], row["ttft_ms_median"] / 1e3))
    except (KeyError, TypeError) as exc:
        raise BadInputError(f"{path}: no first-token run, {exc} is missing") from exc


def add_loop(measured: Measured, path: Path, profile: EngineProfile) -> None:
    """A closed loop: `conc` streams of `plen` in and `out` out, `itl_ms` while all decode, which `window_s` frames."""
    told = read(path)
    try:
        context, itl_s = told["plen"] + told["out"] / 2, told["itl_ms"]["p50"] / 1e3
        point = LoopPoint(told["conc"], told["plen"], context, itl_s, told["window_s"][0])
    except (KeyError, TypeError) as exc:
        raise BadInputError(f"{path}: no closed loop, {exc} is missing") from exc
    measured.loops.append((StepCost.for_profile(profile), point))


def rows_of(path: Path) -> list[list[Any]]:
    """A recorded run's requests in order of sending: [id, sent s, prompt, answer tokens, status, TTFT s, E2E s, …]."""
    rows = read(path).get("records")
    if not rows:
        raise BadInputError(f"{path}: no records to replay")
    return sorted(rows, key=lambda row: row[1])


def figures_told(path: Path) -> Replayed:
    """A recorded run's own figures."""
    rows = rows_of(path)
    ends = [row[1] + row[6] for row in rows]
    tokens = sum(row[7] for row in rows)
    return Replayed(
        itl_s=sum(row[6] - row[5] for row in rows) / sum(row[7] - 1 for row in rows),
        e2e_s=sum(row[6] for row in rows) / len(rows),
        throughput=tokens / (max(ends) - min(row[1] for row in rows)),
        ttft_mean_s=sum(row[5] for row in rows) / len(rows),
        ttft_p99_s=_p99([row[5] for row in rows]),
        longest_gap_s=max(row[8] or 0.0 for row in rows) / 1e3,
    )


def replay(path: Path, profile: EngineProfile, kv_tokens: int, calibration: Calibration | None) -> Replayed:
    """The same requests through one simulated instance, without admission and with endless patience."""
    rows = rows_of(path)
    start_s = min(0.0, rows[0][1])
    plans = [PlannedRequest(i, row[1] - start_s, row[2], row[3]) for i, row in enumerate(rows)]
    run = simulate(patient(profile), plans, admission=False, calibration=calibration, kv_capacity_tokens=kv_tokens)
    return figures_of_twin(run)


def patient(profile: EngineProfile) -> ClusterSpec:
    """One instance behind a gateway that never gives up."""
    timeouts = TimeoutsSpec(first_token_s=NEVER_S, gap_s=NEVER_S, total_s=NEVER_S)
    pool = PoolSpec(model="m", instances=[InstanceSpec(url="http://127.0.0.1:1")], engine=profile)
    return ClusterSpec(pools=[pool], gateway=GatewaySpec(timeouts=timeouts))


def figures_of_twin(run: RunRecord) -> Replayed:
    """The same figures of a simulated run."""
    stream_s, tokens, e2e_s, ttfts, ends, sends = 0.0, 0, 0.0, [], [], []
    for record in run.requests:
        first_s, end_s, sent_s = record.first_token_s, record.end_s, record.plan.at_s
        if first_s is None or end_s is None:
            raise BadInputError(f"request {record.plan.index} of the replay ended as {record.outcome.value}")
        stream_s += end_s - first_s
        tokens += record.output_tokens
        e2e_s += end_s - sent_s
        ttfts.append(first_s - sent_s)
        ends.append(end_s)
        sends.append(sent_s)
    count = len(run.requests)
    return Replayed(
        itl_s=stream_s / (tokens - count),
        e2e_s=e2e_s / count,
        throughput=tokens / (max(ends) - min(sends)),
        ttft_mean_s=sum(ttfts) / count,
        ttft_p99_s=_p99(ttfts),
        longest_gap_s=max(record.longest_gap_s for record in run.requests),
    )


def _p99(values: list[float]) -> float:
    """Nearest rank."""
    ranked = sorted(values)
    return ranked[max(0, -(-len(ranked) * 99 // 100) - 1)]
