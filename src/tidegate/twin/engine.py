"""Which scheduler an engine's kind has in the twin."""

from __future__ import annotations

from tidegate.spec import EngineProfile
from tidegate.twin.cost import StepCost
from tidegate.twin.instance import Instance
from tidegate.twin.sglang import SglangInstance
from tidegate.twin.steplog import StepLog


def engine_of(
    name: str,
    profile: EngineProfile,
    cost: StepCost,
    log: StepLog | None = None,
    list_tokens: bool = True,
    capacity_tokens: int = -1,
) -> Instance:
    """An instance scheduled as `profile.kind` does: SGLang as itself, every other as vLLM V1. Raises as `Instance`."""
    if profile.kind == "sglang":
        return SglangInstance(name, profile, cost, log, list_tokens, capacity_tokens)
    return Instance(name, profile, cost, log, list_tokens, capacity_tokens)
