"""What configuration shows: launch scripts through lint, dashboards and rules through their metric names."""

from __future__ import annotations

import re
from typing import Final

from tidegate.engines.doctor.diagnosis import Confidence, Diagnosis, Evidence, quoted
from tidegate.engines.lint import LintRequest, Severity, lint_text
from tidegate.engines.notes import notes
from tidegate.engines.optiontable import table
from tidegate.errors import BadInputError

_METRIC: Final = re.compile(r"\b(vllm|sglang)(:[a-z][a-z0-9_]*)")
_SUFFIXES: Final = re.compile(r"_(total|bucket|sum|count|created)$")
_SUMMED: Final = re.compile(
    r"\bsum\s*(?:(?:by|without)\s*\([^)]*\)\s*)?\(\s*((?:vllm:(?:kv|gpu)_cache_usage_perc|sglang:token_usage)\b)"
)


def examine_config(name: str, text: str, request: LintRequest) -> list[Diagnosis]:
    """Launches in the text, judged; metric names in it, looked up."""
    return [*_launches(name, text, request), *_metrics(name, text)]


def _launches(name: str, text: str, request: LintRequest) -> list[Diagnosis]:
    try:
        report = lint_text(text, name, request)
    except BadInputError:
        # No launch script; it may still be a dashboard.
        return []
    return [
        Diagnosis(
            id=f"lint:{finding.rule}",
            title=finding.text,
            confidence=Confidence.HIGH if finding.severity is Severity.ERROR else Confidence.MEDIUM,
            evidence=(Evidence(name, finding.line, quoted(text.splitlines()[finding.line - 1])),),
            cause=finding.why or "the launch script says something this engine version does not take",
            fix=tuple(
                part for part in (f"write: {finding.corrected}" if finding.corrected else "", finding.advice) if part
            )
            or ("remove it",),
            try_command=f"tidegate lint {name} --fix",
        )
        for finding in report.findings
        if finding.severity >= Severity.WARNING
    ]


def _metrics(name: str, text: str) -> list[Diagnosis]:
    found: dict[str, Diagnosis] = {}
    for number, line in enumerate(text.splitlines(), 1):
        for match in _METRIC.finditer(line):
            metric = match.group(0)
            if metric not in found and (made := _stale(name, number, line, match.group(1), metric)) is not None:
                found[metric] = made
        summed = _SUMMED.search(line)
        if summed:
            found[f"sum {summed.group(1)}"] = _sum_of_fractions(Evidence(name, number, quoted(line)), summed.group(1))
    return list(found.values())


def _stale(name: str, number: int, line: str, engine: str, metric: str) -> Diagnosis | None:
    known = table(engine)
    bare = _SUFFIXES.sub("", metric)
    names = {metric, bare, f"{bare}_total"} & set(known.file.metrics)
    if any(known.within(known.file.metrics[one], known.newest) for one in names):
        return None
    change = notes(engine).metrics.get(bare) or notes(engine).metrics.get(metric)
    gone = known.gone(known.file.metrics[names.pop()], known.newest) if names else ""
    if change is None and not gone:
        return None
    to = change.to if change else ""
    return Diagnosis(
        id="metric-renamed",
        title=f"{metric} is no metric of {engine} {known.newest}" + (f" ({gone})" if gone else ""),
        confidence=Confidence.HIGH,
        evidence=(Evidence(name, number, quoted(line)),),
        cause=(change.why if change else "it was removed") + "; panels and routers that ask for it read nothing",
        fix=(f"ask for {to}",) if to else ("remove it",),
        reference="kubernetes-sigs/gateway-api-inference-extension#1905",
    )


def _sum_of_fractions(evidence: Evidence, metric: str) -> Diagnosis:
    return Diagnosis(
        id="fractions-summed",
        title=f"{metric} is summed over instances",
        confidence=Confidence.HIGH,
        evidence=(evidence,),
        cause="it is a fraction: two instances at 40 % are not one at 80 %",
        fix=("use avg or max, or weight by capacity",),
        reference="kubernetes-sigs/gateway-api-inference-extension#1905",
    )
