"""A diagnosis and the table of symptoms it mostly comes from."""

from __future__ import annotations

from enum import IntEnum
from functools import cache
from importlib import resources
from typing import Final

import msgspec
import yaml

SHOWN_CHARACTERS: Final = 300


class Confidence(IntEnum):
    """How sure a diagnosis is."""

    LOW = 1
    MEDIUM = 2
    HIGH = 3


class Evidence(msgspec.Struct, frozen=True):
    """A quoted line, or a figure read from a page. `line` is 0 where there is none."""

    source: str
    line: int
    text: str

    def __str__(self) -> str:
        place = f"{self.source}:{self.line}" if self.line else self.source
        return f"{place}: {self.text}"


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong, why, and what to do."""

    id: str
    title: str
    confidence: Confidence
    evidence: tuple[Evidence, ...]
    count: int = 1
    """How often the symptom was seen."""
    cause: str
    fix: tuple[str, ...]
    try_command: str = ""
    reference: str = ""
    consequence: bool = False


class Symptom(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of `symptoms.yaml`."""

    id: str
    title: str
    triggers: list[str]
    cause: str
    fix: list[str]
    confidence: str
    pattern: str = ""
    try_: str = msgspec.field(default="", name="try")
    reference: str = ""
    consequence: bool = False
    before_ready: bool = False

    @property
    def sure(self) -> Confidence:
        return Confidence[self.confidence.upper()]


@cache
def symptoms() -> tuple[Symptom, ...]:
    """The packaged table."""
    text = resources.files("tidegate.engines.tables").joinpath("symptoms.yaml").read_text(encoding="utf-8")
    return tuple(msgspec.convert(yaml.safe_load(text), list[Symptom]))


def quoted(text: str) -> str:
    """A line as evidence shows it: without control characters, cut to a length."""
    clean = "".join(char if char.isprintable() else " " for char in text[: 4 * SHOWN_CHARACTERS]).strip()
    return clean if len(clean) <= SHOWN_CHARACTERS else clean[: SHOWN_CHARACTERS - 1] + "…"
