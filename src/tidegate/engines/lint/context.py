"""What every rule is given, and how it says what it found."""

from __future__ import annotations

from typing import Final

import msgspec

from tidegate.engines.fit import Gpu, ModelShape
from tidegate.engines.lint.edit import Edit, apply
from tidegate.engines.lint.finding import RULES, Finding, Severity
from tidegate.engines.lint.uses import Parsed
from tidegate.engines.notes import Notes
from tidegate.engines.optiontable import EngineTable, OptionSet
from tidegate.engines.scripts import FoundLaunch

_SHOWN_LINES: Final = 3


class LintRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to judge by. Everything may be left out; physical rules need `shape` and `gpu`."""

    engine: str | None = None
    """`vllm` or `sglang`: only launches of it are judged."""
    version: str | None = None
    """None: the image's tag, else the newest recorded."""
    installed: OptionSet | None = None
    """What the installed engine's own help lists; it overrules the version."""
    shape: ModelShape | None = None
    gpu: Gpu | None = None
    rate_per_s: float | None = None
    """Requests a second at the peak."""
    answer_s: float = 5.0
    """How long one request runs: 250 tokens at 20 ms."""
    itl_s: float = 0.05


class Context:
    """One launch under judgement. Rules append to `findings` through `say`."""

    __slots__ = ("findings", "launch", "notes", "options", "parsed", "request", "source", "table")

    def __init__(
        self,
        source: str,
        launch: FoundLaunch,
        request: LintRequest,
        table: EngineTable,
        notes: Notes,
        options: OptionSet,
        parsed: Parsed,
    ) -> None:
        self.source = source
        self.launch = launch
        self.request = request
        self.table = table
        self.notes = notes
        self.options = options
        self.parsed = parsed
        self.findings: list[Finding] = []

    def say(
        self,
        rule: str,
        at: int,
        text: str,
        *,
        why: str = "",
        advice: str = "",
        edits: list[Edit] | None = None,
        severity: Severity | None = None,
    ) -> None:
        """Adds a finding at a place in the source."""
        done = tuple(edits or ())
        self.findings.append(
            Finding(
                rule=rule,
                severity=severity if severity is not None else RULES[rule][0],
                line=self.source.count("\n", 0, at) + 1,
                column=at - self.source.rfind("\n", 0, at),
                text=text,
                why=why,
                advice=advice,
                edits=done,
                corrected=_corrected(self.source, done) if done else "",
            )
        )

    @property
    def start(self) -> int:
        """Where the launch begins, for findings about something that is not there."""
        if self.launch.program is not None:
            return self.launch.program.start
        return self.launch.words[0].start if self.launch.words else 0


def _corrected(source: str, edits: tuple[Edit, ...]) -> str:
    """The lines the edits leave in place of those they touch; empty when nothing is left there."""
    lines: list[str] = []
    at = 0
    for edit in sorted(edits, key=lambda one: one.start):
        start = source.rfind("\n", 0, edit.start) + 1
        if start < at:
            continue
        end = source.find("\n", edit.end - 1 if edit.end > edit.start else edit.end)
        at = len(source) if end < 0 else end + 1
        own = [
            Edit(one.start - start, one.end - start, one.text) for one in edits if start <= one.start and one.end <= at
        ]
        added = edit.start == edit.end and "\n" in edit.text
        left = edit.text if added else apply(source[start:at], own)
        lines += [line.strip() for line in left.splitlines() if line.strip(" \\")]
    return "\n".join(lines[:_SHOWN_LINES])
