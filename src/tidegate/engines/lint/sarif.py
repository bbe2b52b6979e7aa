"""Findings as SARIF 2.1.0, the form code-scanning services read."""

from __future__ import annotations

from typing import Any, Final

from tidegate.engines.lint.check import Report
from tidegate.engines.lint.finding import RULES, Finding, Severity

_LEVELS: Final = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "note"}
_SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"


def sarif(reports: list[Report], version: str) -> dict[str, Any]:
    """One run with every finding of every report; `version` is Tidegate's."""
    rules = [
        {"id": name, "shortDescription": {"text": text}, "defaultConfiguration": {"level": _LEVELS[severity]}}
        for name, (severity, text) in RULES.items()
    ]
    driver = {"name": "tidegate lint", "version": version, "rules": rules}
    results = [_result(report.name, finding) for report in reports for finding in report.findings]
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}


def _result(name: str, finding: Finding) -> dict[str, Any]:
    parts = (finding.text, finding.why, finding.advice, f"write: {finding.corrected}" if finding.corrected else "")
    region = {"startLine": finding.line, "startColumn": finding.column}
    place = {"physicalLocation": {"artifactLocation": {"uri": name}, "region": region}}
    return {
        "ruleId": finding.rule,
        "ruleIndex": list(RULES).index(finding.rule),
        "level": _LEVELS[finding.severity],
        "message": {"text": ". ".join(part for part in parts if part)},
        "locations": [place],
    }
