"""The cluster document: pools, gateway, SLO, tenants (design.md §3–§5)."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field
from msgspec.structs import force_setattr

from tidegate.spec.profile import EngineProfile
from tidegate.spec.quantity import (
    BufferBytes,
    Bytes,
    Count,
    Fraction,
    IntervalSeconds,
    PositiveCount,
    PositiveFraction,
    PositiveSeconds,
    Seconds,
    Word,
)
from tidegate.spec.traffic import TrafficSpec

Name = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}$",
        extra={"expects": "a name (1 to 128 of A-Z a-z 0-9 . _ : / -, starting with a letter or digit)"},
    ),
]
Address = Annotated[
    str,
    Meta(
        pattern=r"^(\[[0-9a-fA-F:]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}$",
        extra={"expects": "an address like 127.0.0.1:8080 or [::1]:8080"},
    ),
]
HttpUrl = Annotated[
    str,
    Meta(
        pattern=r"^http://(\[[0-9a-fA-F:]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?/?$",
        extra={"expects": "a URL like http://10.0.0.7:8000 (no path; Tidegate adds /v1/...)"},
    ),
]
Sha256 = Annotated[
    str,
    Meta(
        pattern=r"^[0-9a-f]{64}$",
        extra={"expects": "the SHA-256 of a key (64 hex digits in lower case)"},
    ),
]


class InstanceSpec(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One engine server. `name` defaults to the URL's host:port."""

    url: HttpUrl
    """Where the engine listens, without a path."""
    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9._:\[\]-]{0,127}$", extra={"expects": "a name"})] = ""
    """What logs and metrics call it; host:port of the URL by default."""

    def __post_init__(self) -> None:
        force_setattr(self, "url", self.url.removesuffix("/"))
        if not self.name:
            force_setattr(self, "name", self.url.removeprefix("http://"))


class PoolSpec(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The instances that serve one model."""

    model: Name
    """What clients ask for, and what the engines call it."""
    instances: Annotated[list[InstanceSpec], Meta(min_length=1)]
    """The engine servers that run it, at least one."""
    engine: EngineProfile = EngineProfile()
    """What each of them is and how its scheduler is set."""


class SloSpec(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The promise. A request meets it when its TTFT and at least 99 % of its gaps are inside."""

    ttft_s: PositiveSeconds = field(default=0.8, name="ttft")
    """Time to the first token, from the client's send."""
    itl_s: PositiveSeconds = field(default=0.05, name="itl")
    """Gap between two tokens of one answer."""


class AdmissionSpec(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What an instance may hold of this gateway's work. `enabled: false` forwards everything at once."""

    enabled: bool = True
    """Whether requests are held back at all."""
    max_in_flight: PositiveCount = 256
    """Requests in flight on one instance."""
    max_prefill_tokens: PositiveCount = 16_384
    """Prompt tokens sent to one instance whose first token is not out yet. A longer prompt goes in alone."""
    prefill_ahead_s: PositiveSeconds = field(default=0.2, name="prefill_ahead")
    """How much prefill work an instance is given ahead, by its measured rate; the rest waits here, in fair order."""
    ttft_headroom: PositiveFraction = 0.9
    """Share of the SLO's TTFT that waiting and the predicted prefill may take together."""
    long_prompt_tokens: PositiveCount = field(default=4096, name="long_prompt")
    """A prompt with more tokens queues and prefills in the long lane."""
    long_share: PositiveFraction = 0.5
    """Share of the admitted prompt tokens that goes to long prompts while short ones wait too."""
    kv_high: PositiveFraction = 0.95
    """Share of an instance's KV blocks that may be claimed; ignored while its capacity is unknown."""


class QueueSpec(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Requests waiting for room. Each bound refuses with 429 and `Retry-After`."""

    max_requests: Count = 512
    """Requests that may wait; 0 queues nothing."""
    max_bytes: Bytes = 256 * 2**20
    """Sum of the bodies that may wait."""
    max_wait_s: Seconds = field(default=0.5, name="max_wait")
    """How long one request may wait."""


class TimeoutsSpec(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Patience with an engine, each stage apart."""

    connect_s: PositiveSeconds = field(default=2.0, name="connect")
    """For the TCP connection."""
    first_token_s: PositiveSeconds = field(default=60.0, name="first_token")
    """From sending the request to the first token of its answer."""
    gap_s: PositiveSeconds = field(default=30.0, name="gap")
    """Between two pieces of an answer."""
    total_s: PositiveSeconds = field(default=1800.0, name="total")
    """For a request as a whole."""


class RetrySpec(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Second attempts before the first byte, for the whole pool."""

    budget: Fraction = 0.1
    """Retries allowed as a share of requests."""
    max_attempts: Annotated[int, Meta(ge=1, le=10, extra={"unit": "count"})] = 2
    """Attempts at one request, the first included; 1 never retries."""


class BreakerSpec(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """When an instance that fails requests is taken out, and how it is tried again."""

    window_s: PositiveSeconds = field(default=10.0, name="window")
    """The stretch of time its failure rate is taken over."""
    min_requests: PositiveCount = 10
    """Fewer answers than this in the window say nothing."""
    failure_share: PositiveFraction = 0.5
    """Share of failures that takes it out. 4xx, 429 and 503 are no failures."""
    cool_off_s: PositiveSeconds = field(default=5.0, name="cool_off")
    """How long it rests before one request tries it; twice as long after each failed trial."""
    max_ejected: Fraction = 0.5
    """Share of a pool that may be out by rate at once; the last instance never is."""


class LimitsSpec(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Bounds on what one client connection may send."""

    body_bytes: BufferBytes = field(default=16 * 2**20, name="body")
    """Largest request body."""
    head_bytes: BufferBytes = field(default=32 * 2**10, name="head")
    """Largest request line and headers together."""
    connections: PositiveCount = 20_000
    """Client connections open at once."""
    idle_s: PositiveSeconds = field(default=75.0, name="idle")
    """How long a silent keep-alive connection, or one that dribbles a request, is kept."""


class GatewaySpec(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The data path's own settings."""

    listen: Address = "127.0.0.1:8080"
    """Where clients connect. Port 0 takes any free port."""
    admin: Address = "127.0.0.1:9080"
    """Where health and metrics are served. Port 0 takes any free port."""
    admission: AdmissionSpec = AdmissionSpec()
    """What one instance may hold."""
    queue: QueueSpec = QueueSpec()
    """What may wait for room."""
    timeouts: TimeoutsSpec = TimeoutsSpec()
    """Patience with an engine."""
    retry: RetrySpec = RetrySpec()
    """Second attempts."""
    breaker: BreakerSpec = BreakerSpec()
    """When an instance that fails is taken out."""
    limits: LimitsSpec = LimitsSpec()
    """Bounds on clients."""
    scrape_interval_s: IntervalSeconds = field(default=0.25, name="scrape_interval")
    """How often each instance's metrics are read."""
    drain_s: Seconds = field(default=15.0, name="drain")
    """After SIGTERM, how long streams may go on before they end with an error event."""
    bytes_per_token: Annotated[float, Meta(gt=0, le=64)] = 4.0
    """First guess of a prompt's tokens from its bytes; learned from `usage` afterwards."""
    expected_output_tokens: PositiveCount = 256
    """First guess of an answer's length where the client sets no limit; learned from `usage` afterwards."""


class BudgetSpec(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What one tenant may use. A limit that is not set does not exist."""

    requests: PositiveCount | None = None
    """Requests a minute."""
    input_tokens: PositiveCount | None = None
    """Prompt tokens a minute."""
    output_tokens: PositiveCount | None = None
    """Answer tokens a minute."""
    concurrent: PositiveCount | None = None
    """Requests open at once, waiting ones included."""
    burst_s: PositiveSeconds = field(default=60.0, name="burst")
    """How much of a rate may come at once, as time: 60s is the whole minute's budget, 1s is almost none of it."""

    @property
    def any_set(self) -> bool:
        """Whether there is any limit."""
        return not (self.requests is self.input_tokens is self.output_tokens is self.concurrent is None)


class ModelBudgetSpec(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A tenant's limits for one model, on top of those for all."""

    model: Name
    """The model they hold for."""
    limits: BudgetSpec = BudgetSpec()
    """What it may use there."""


class TenantSpec(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One customer. Without any tenant every key is accepted as tenant `default`."""

    name: Name
    """What limits, logs and metrics call this customer."""
    key_sha256: list[Sha256] = []
    """SHA-256 of each API key, in hex: `printf %s KEY | sha256sum`."""
    weight: Annotated[float, Meta(gt=0, le=1000)] = 1.0
    """Its share against other tenants when both wait: 2 is served twice the tokens."""
    limits: BudgetSpec = BudgetSpec()
    """What it may use, over all models."""
    model_limits: list[ModelBudgetSpec] = []
    """What it may use of single models."""
    priority: Literal["critical", "high", "normal", "best_effort"] = "normal"
    """Who goes first when there is not room for all."""


class CostSpec(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Money, for cost per million tokens."""

    gpu_hour: Annotated[float, Meta(ge=0, le=1e6)] = 2.5
    """Price of one GPU for one hour."""
    currency: Word = "USD"
    """What that price is in; only printed."""
    prompt_share: Fraction = 0.25
    """Share of the cost that is put on prompt tokens; the rest is put on output tokens."""


class ClusterSpec(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A whole `tidegate.yaml`."""

    version: Literal[1] = 1
    """The format of this file."""
    pools: Annotated[list[PoolSpec], Meta(min_length=1)]
    """The models and the engine servers behind them, at least one."""
    gateway: GatewaySpec = GatewaySpec()
    """The data path's settings."""
    slo: SloSpec = SloSpec()
    """What clients are promised."""
    tenants: list[TenantSpec] = []
    """Who may call. With none, every key is accepted as tenant `default`."""
    traffic: TrafficSpec = TrafficSpec()
    """What load runs and simulations send."""
    cost: CostSpec = CostSpec()
    """What the GPUs cost."""
