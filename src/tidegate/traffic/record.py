"""The record of a run: every request's fate, and what the run was (measuring.md).

Written by load, drill and twin, read by report and tune. Times are seconds since the run's start.
"""

from __future__ import annotations

from msgspec import Struct, field

from tidegate.errors import Outcome
from tidegate.traffic.plan import PlannedRequest


class RequestRecord(Struct, gc=False):
    """What became of one request. `None` means it never happened, or is not known."""

    plan: PlannedRequest
    outcome: Outcome
    status: int = 0
    """HTTP status; 0 where none came."""
    reason: str = ""
    """Machine-readable refusal or error code, as answered."""
    sent_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    end_s: float | None = None
    prompt_tokens: int = 0
    """From `usage`; 0 where none came."""
    output_tokens: int = 0
    """From `usage`, else counted on the stream (`usage_known` false)."""
    usage_known: bool = False
    instance: str = ""
    gap_count: int = 0
    gaps_over_slo: int = 0
    """Gaps longer than the SLO's ITL."""
    longest_gap_s: float = 0.0
    gaps_ms: list[float] = []
    """Raw gaps between token-carrying chunks; empty for twin runs, which keep the pooled histogram only."""
    first_visible_s: float | None = None
    """First token that is not reasoning."""
    text_fault: str = ""
    """What was wrong with the text of an answer that could be verified (emulated engines); empty when nothing."""

    @property
    def ttft_s(self) -> float | None:
        """First token since the *intended* send time."""
        return None if self.first_token_s is None else self.first_token_s - self.plan.at_s


class PhaseMark(Struct, frozen=True):
    """Where one phase lay, in seconds since the run's start. A name may come back (pulses)."""

    name: str
    start_s: float
    end_s: float


class InstanceRecord(Struct, kw_only=True):
    """What one instance did during the measured window, or during `observed_s` where that is given."""

    name: str
    gpus: int = 0
    steps: int = 0
    busy_s: float = 0.0
    preemptions: int | None = None
    exits_unasked: int = 0
    model_flops: float | None = None
    """FLOPs of processed tokens."""
    peak_flops_per_s: float | None = None
    """Dense peak of the whole instance at its weights' dtype."""
    kv_peak_fraction: float | None = None
    prompt_tokens: int = 0
    output_tokens: int = 0
    observed_s: float | None = None
    """Span the counters above cover; `None` means the run's measured window."""


class RunRecord(Struct, kw_only=True):
    """One run. `gaps` pools every inter-token gap: bucket upper bound in µs → count (see `histogram`)."""

    id: str
    kind: str
    """`load` or `twin`."""
    label: str
    emulated: bool
    """True when engine times come from a model of an engine, not from one."""
    started_at: str
    """ISO 8601 UTC, for people; never used for durations."""
    seed: int
    window_s: tuple[float, float]
    """Measured window, after warm-up."""
    slo_ttft_s: float
    slo_itl_s: float
    requests: list[RequestRecord]
    gaps: dict[int, int] = field(default_factory=dict)
    gaps_by_group: dict[str, dict[int, int]] = field(default_factory=dict)
    """The same gaps by `phase/length class` (see `gappool`), for runs that keep no raw gaps."""
    phases: list[PhaseMark] = field(default_factory=list)
    sent: int | None = None
    """Requests sent, counted at the sending and not from `requests`: the left side of invariant 1."""
    in_flight: int = 0
    """Requests sent that had not ended when the record was made; they are not in `requests`."""
    warmup_requests: int = 0
    interrupted: bool = False
    """Someone stopped the run before its schedule was through."""
    instances: list[InstanceRecord] = field(default_factory=list)
    client_lag_p99_s: float | None = None
    offered_per_s: float = 0.0
    achieved_per_s: float = 0.0
    loop_lag_p99_s: float | None = None
    """How late the driver's own timers fired; chunk times carry the same error."""
    client_bound: bool = False
    client_bound_why: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    command: str = ""
    notes: list[str] = field(default_factory=list)
    hardware: str = ""
    gpu_hour_price: float = 0.0
    currency: str = "USD"
    prompt_cost_share: float = 0.25
