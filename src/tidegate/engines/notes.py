"""What to write instead of options, variables and metrics that are gone: the hand-written side of the tables.

In: `tables/<engine>.notes.yaml`. Out: typed notes by name. The spans of existence are not here but in the learned
tables, so that a note never decides whether a version accepts a name.
"""

from __future__ import annotations

from functools import cache
from importlib import resources

import msgspec
import yaml


class Change(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What became of a name. `to`: the words that replace it (empty: drop it); `carry`: its value goes with it."""

    why: str
    to: str = ""
    carry: bool = False
    suggest: str = ""
    """Something a person should consider; never written by --fix."""
    evidence: str = ""


class MetricChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a metric is called now; `to` is empty where nothing took its place."""

    to: str
    why: str


class DefaultChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A default that a release moved: an upgrade changes it under whoever did not set the option."""

    option: str
    since: str
    was: str
    now: str


class Notes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All notes of one engine."""

    options: dict[str, Change]
    env: dict[str, Change]
    defaults: list[DefaultChange]
    metrics: dict[str, MetricChange]


@cache
def notes(engine: str) -> Notes:
    """The notes of `vllm` or `sglang`."""
    text = resources.files("tidegate.engines.tables").joinpath(f"{engine}.notes.yaml").read_text(encoding="utf-8")
    return msgspec.convert(yaml.safe_load(text), Notes)
