"""Reads a script, judges every launch in it, and writes the fixed text."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from tidegate.engines.lint.context import Context, LintRequest
from tidegate.engines.lint.edit import Edit, apply
from tidegate.engines.lint.environment import judge_environment
from tidegate.engines.lint.finding import Finding, Severity
from tidegate.engines.lint.habits import judge_habits
from tidegate.engines.lint.options import judge_names
from tidegate.engines.lint.physics import judge_physics
from tidegate.engines.lint.uses import parse
from tidegate.engines.lint.values import judge_values
from tidegate.engines.notes import notes
from tidegate.engines.optiontable import OptionSet, table
from tidegate.engines.scripts import FoundLaunch, read_launches
from tidegate.errors import BadInputError

__all__ = ["LintRequest", "Report", "lint_text"]

_TAG: Final = re.compile(r":v?(\d+\.\d+(?:\.\d+)?(?:\.?post\d+)?)")


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All findings of one text, by place. `judged`: which engine and version each launch was held against."""

    name: str
    findings: tuple[Finding, ...]
    judged: tuple[str, ...]
    remarks: tuple[str, ...]
    """What limits the judgement: a version never recorded, words only a shell could tell."""
    fixed: str
    """The text with every edit done; equal to the source when there is none."""

    @property
    def worst(self) -> Severity | None:
        return max((finding.severity for finding in self.findings), default=None)


def lint_text(source: str, name: str, request: LintRequest) -> Report:
    """Judges a script, manifest or command line. Raises BadInputError when it starts no engine that is asked for."""
    launches = read_launches(source, name)
    wanted = [one for one in launches if request.engine in (None, one.engine)]
    if not wanted:
        found = ", ".join(sorted({one.engine for one in launches}))
        raise BadInputError(f"{name} starts {found}, not {request.engine}", hint="leave --engine out to judge all")
    findings: list[Finding] = []
    judged: list[str] = []
    remarks: list[str] = []
    for launch in wanted:
        options = _options(launch, request, remarks)
        judged.append(options.label)
        findings += _judge(source, launch, request, options)
        if any(not word.known for word in launch.words):
            remarks.append("words that only a running shell could tell were not judged")
    findings.sort(key=lambda one: (one.line, one.column, -one.severity))
    return Report(
        name=name,
        findings=tuple(findings),
        judged=tuple(dict.fromkeys(judged)),
        remarks=tuple(dict.fromkeys(remarks)),
        fixed=apply(source, _ordered(findings)),
    )


def _judge(source: str, launch: FoundLaunch, request: LintRequest, options: OptionSet) -> list[Finding]:
    parsed = parse(launch, options)
    context = Context(source, launch, request, table(launch.engine), notes(launch.engine), options, parsed)
    judge_names(context)
    judge_values(context)
    judge_environment(context)
    judge_habits(context)
    judge_physics(context)
    return context.findings


def _options(launch: FoundLaunch, request: LintRequest, remarks: list[str]) -> OptionSet:
    if request.installed is not None and request.installed.engine == launch.engine:
        return request.installed
    known = table(launch.engine)
    version = request.version or _tagged(launch) or known.newest
    note = known.resolve(version)[1]
    if note:
        remarks.append(note)
    return known.options(version)


def _tagged(launch: FoundLaunch) -> str | None:
    match = _TAG.search(launch.container.image) if launch.container is not None else None
    return match.group(1) if match else None


def _ordered(findings: list[Finding]) -> list[Edit]:
    """Edits of errors come before those of lesser findings where they touch the same place."""
    ranked = sorted(findings, key=lambda one: -one.severity)
    taken: list[Edit] = []
    for finding in ranked:
        if all(_apart(edit, other) for edit in finding.edits for other in taken):
            taken += finding.edits
    return taken


def _apart(one: Edit, other: Edit) -> bool:
    if one == other:
        return True
    if one.start == one.end and other.start == other.end:
        return True
    return one.end <= other.start or other.end <= one.start
