"""Why an SLO cannot be kept: the arithmetic of one step and one prompt, and the cheapest way out.

In: a cluster and its planned requests. Out: sentences with numbers. On an idle server a prompt is computed in chunks of
the step budget; the budget is bounded by the gap that one step makes for everybody else. Both bounds together say which
prompts can get their first token in time, whatever the tuning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Struct

from tidegate.errors import BadInputError
from tidegate.spec import ClusterSpec
from tidegate.traffic.plan import PlannedRequest
from tidegate.tune.space import STEP_TOKENS
from tidegate.twin.cost import StepCost
from tidegate.units import format_duration

BESIDE: Final = 128
"""Decodes that share the step with a prompt's chunk."""
MEAN_CONTEXT_TOKENS: Final = 1500.0


class Bound(Struct, frozen=True, kw_only=True):
    """The largest step budget within the ITL, and what it means for prompts."""

    step_tokens: int
    step_s: float
    longest_tokens: int
    """Prompt tokens of the longest request."""
    longest_s: float
    """Its first token on an idle server."""
    late_share: float
    """Share of requests whose prompt alone takes longer than the TTFT."""
    fitting_tokens: int
    """Longest prompt that is in time."""


def bound_of(spec: ClusterSpec, plans: Sequence[PlannedRequest]) -> Bound | None:
    """None when not even the smallest step keeps the ITL, or the twin does not know the engine."""
    engine = spec.pools[0].engine
    fitting: tuple[int, float, StepCost] | None = None
    for tokens in (tokens for tokens in STEP_TOKENS if tokens > BESIDE):
        try:
            profile = msgspec.structs.replace(
                engine, step_tokens=tokens, max_sequences=min(engine.max_sequences, tokens)
            )
            cost = StepCost.for_profile(profile)
        except BadInputError:
            continue
        step_s = cost.prefill_s(tokens - BESIDE, tokens * tokens / 2, BESIDE, MEAN_CONTEXT_TOKENS)
        if step_s <= spec.slo.itl_s:
            fitting = (tokens, step_s, cost)
    if fitting is None or not plans:
        return None
    tokens, step_s, cost = fitting
    lengths = sorted(one.prompt_tokens for one in plans)
    times = {length: idle_ttft_s(cost, length, tokens) for length in set(lengths)}
    in_time = [length for length in lengths if times[length] <= spec.slo.ttft_s]
    return Bound(
        step_tokens=tokens,
        step_s=step_s,
        longest_tokens=lengths[-1],
        longest_s=times[lengths[-1]],
        late_share=1.0 - len(in_time) / len(lengths),
        fitting_tokens=max(in_time, default=0),
    )


def idle_ttft_s(cost: StepCost, prompt_tokens: int, step_tokens: int) -> float:
    """Seconds to compute a prompt in chunks with nobody else there."""
    total, done = 0.0, 0
    while done < prompt_tokens:
        new = min(step_tokens, prompt_tokens - done)
        total += cost.prefill_s(new, new * (done + new / 2), 0, 0.0)
        done += new
    return total


def impossible(spec: ClusterSpec, plans: Sequence[PlannedRequest]) -> str:
    """Why no setting at all can keep the SLO, or nothing: found before any search."""
    try:
        StepCost.for_profile(spec.pools[0].engine)
    except BadInputError:
        return ""
    bound = bound_of(spec, plans)
    itl = format_duration(spec.slo.itl_s)
    if bound is None:
        smallest = STEP_TOKENS[0]
        return f"no step is short enough for an ITL of {itl}: even {smallest} tokens a step take longer"
    if bound.fitting_tokens == 0:
        return f"no prompt of this traffic gets its first token in time: {_sentence(spec, bound)}"
    return ""


def explanation(spec: ClusterSpec, plans: Sequence[PlannedRequest]) -> list[str]:
    """What binds, and ways out, cheapest first."""
    bound = bound_of(spec, plans)
    if bound is None:
        return [impossible(spec, plans) or "the twin knows no step times for this engine"]
    lines = [_sentence(spec, bound)]
    if bound.late_share > 0:
        lines += [
            f"{bound.late_share:.1%} of the prompts are too long for that; ways out, cheapest first:",
            f"  promise a TTFT by prompt length, or {format_duration(bound.longest_s)} for all",
            f"  admit prompts up to {bound.fitting_tokens:,} tokens here, and give longer ones instances of their own",
            "  use more GPUs for an instance, or allow a longer gap: a larger step computes prompts faster",
        ]
    else:
        lines.append("every prompt fits on an idle server: it is the load that is too high; add instances")
    return lines


def _sentence(spec: ClusterSpec, bound: Bound) -> str:
    return (
        f"within an ITL of {format_duration(spec.slo.itl_s)} a step computes {bound.step_tokens} tokens at most"
        f" ({format_duration(bound.step_s)} with {BESIDE} answers under way); the longest prompt,"
        f" {bound.longest_tokens:,} tokens, then needs {format_duration(bound.longest_s)} on an idle server,"
        f" and TTFT is to be {format_duration(spec.slo.ttft_s)}"
    )
