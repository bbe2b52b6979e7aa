"""Everything the data path counts, as plain ints and buckets, by model of the spec."""

from __future__ import annotations

from typing import Final

from tidegate.errors import Outcome
from tidegate.observe.buckets import Buckets

OTHER: Final = "other"
"""Stands for every model name that no pool has, so that clients cannot grow the label set."""


class ModelMeters:
    """One model's figures."""

    __slots__ = ("duration", "gap", "outcomes", "output_tokens", "prompt_tokens", "queued", "retries", "ttft")

    def __init__(self) -> None:
        self.outcomes: dict[Outcome, int] = dict.fromkeys(Outcome, 0)
        self.ttft = Buckets()
        self.gap = Buckets()
        self.duration = Buckets()
        self.queued = Buckets()
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.retries = 0


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

    def of(self, model: str) -> ModelMeters:
        return self.by_model.get(model) or self.by_model[OTHER]
