"""Everything the data path counts, as plain ints and buckets, by model of the spec."""

from __future__ import annotations

from typing import Final

from tidegate.errors import Outcome
from tidegate.observe.buckets import Buckets

OTHER: Final = "other"
"""Stands for every model name that no pool has, so that clients cannot grow the label set."""


COMPLETED: Final = Outcome.COMPLETED


class ModelMeters:
    """One model's figures."""

    __slots__ = (
        "completed",
        "duration",
        "gap",
        "others",
        "output_tokens",
        "prompt_tokens",
        "queued",
        "retries",
        "ttft",
    )

    def __init__(self) -> None:
        self.completed = 0
        self.others: dict[Outcome, int] = {}
        """Requests that ended otherwise. Apart, because hashing an enum's member is a Python call."""
        self.ttft = Buckets()
        self.gap = Buckets()
        self.duration = Buckets()
        self.queued = Buckets()
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.retries = 0

    def ended(self, outcome: Outcome) -> None:
        """Counts a request's end."""
        if outcome is COMPLETED:
            self.completed += 1
        else:
            self.others[outcome] = self.others.get(outcome, 0) + 1

    def count_of(self, outcome: Outcome) -> int:
        """Requests that ended so."""
        return self.completed if outcome is COMPLETED else self.others.get(outcome, 0)


class Meters:
    """A gateway's figures. One per gateway: nothing here is global."""

    __slots__ = ("by_model", "tenant_tokens", "tick_lag_max_s", "unopened")

    def __init__(self, models: list[str], tenants: list[str]) -> None:
        self.by_model = {model: ModelMeters() for model in [*models, OTHER]}
        self.unopened: dict[Outcome, int] = dict.fromkeys(Outcome, 0)
        """Requests refused before a model was known."""
        self.tenant_tokens: dict[str, list[int]] = {tenant: [0, 0, 0] for tenant in tenants}
        """Requests, prompt tokens, output tokens."""
        self.tick_lag_max_s = 0.0
        """The longest the event loop kept a tick waiting since the last scrape."""

    def know_tenants(self, tenants: list[str]) -> None:
        """Tenants of a renewed spec; the counters of those that went stay until the next start."""
        for tenant in tenants:
            self.tenant_tokens.setdefault(tenant, [0, 0, 0])

    def of(self, model: str) -> ModelMeters:
        return self.by_model.get(model) or self.by_model[OTHER]
