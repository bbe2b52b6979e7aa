"""Small run records for tests: every number in them is chosen by hand."""

from __future__ import annotations

from tidegate.errors import Outcome
from tidegate.traffic.plan import PlannedRequest
from tidegate.traffic.record import RequestRecord, RunRecord


def record(
    index: int,
    at_s: float,
    outcome: Outcome = Outcome.COMPLETED,
    *,
    first_s: float | None = None,
    gaps_ms: list[float] | None = None,
    output_tokens: int | None = None,
    prompt_tokens: int = 1000,
    phase: str = "steady",
    stream: bool = True,
    lag_s: float = 0.0,
    end_s: float | None = None,
    slo_itl_ms: float = 50.0,
) -> RequestRecord:
    """A request whose stream began at `first_s` and then had these gaps."""
    gaps = gaps_ms or []
    last_s = None if first_s is None else first_s + sum(gaps) / 1000
    chunks = 0 if first_s is None else len(gaps) + 1
    return RequestRecord(
        plan=PlannedRequest(index, at_s, prompt_tokens, max(1, chunks), phase=phase, stream=stream),
        outcome=outcome,
        sent_s=at_s + lag_s,
        first_token_s=first_s,
        last_token_s=last_s,
        end_s=last_s if end_s is None else end_s,
        prompt_tokens=prompt_tokens if outcome is Outcome.COMPLETED else 0,
        output_tokens=chunks if output_tokens is None else output_tokens,
        usage_known=outcome is Outcome.COMPLETED,
        gap_count=len(gaps),
        gaps_over_slo=sum(gap > slo_itl_ms for gap in gaps),
        longest_gap_s=max(gaps, default=0.0) / 1000,
        gaps_ms=gaps,
    )


def run_of(requests: list[RequestRecord], window_s: tuple[float, float] = (0.0, 10.0)) -> RunRecord:
    """A run with an SLO of 800 ms and 50 ms."""
    return RunRecord(
        id="run",
        kind="load",
        label="hand",
        emulated=True,
        started_at="2026-01-31T08:15:00Z",
        seed=1,
        window_s=window_s,
        slo_ttft_s=0.8,
        slo_itl_s=0.05,
        requests=requests,
        sent=len(requests),
    )
