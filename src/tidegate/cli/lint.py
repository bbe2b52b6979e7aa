"""`tidegate lint`: what is wrong with a launch script, why, and the corrected line."""

from __future__ import annotations

import json as json_text
import shlex
import sys
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer

from tidegate import __version__
from tidegate.cli.model_files import read_model
from tidegate.engines.fit import find_gpu
from tidegate.engines.helptext import parse_help
from tidegate.engines.installed import installed_options
from tidegate.engines.lint import Finding, LintRequest, Report, Severity, lint_text
from tidegate.engines.lint.sarif import sarif
from tidegate.engines.optiontable import OptionSet, table
from tidegate.engines.scripts.read import LARGEST_SCRIPT_BYTES
from tidegate.engines.versions import parse_engine
from tidegate.errors import BadInputError, ExitCode
from tidegate.units import parse_duration_s, parse_rate_per_s

_NAMES = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "note"}


def command(
    target: Annotated[
        list[str], typer.Argument(help="Scripts, compose files, manifests, - for stdin; or after -- one command line.")
    ],
    engine: Annotated[
        str | None, typer.Option(help="Judge as this engine and version, for example vllm==0.33.0.")
    ] = None,
    help_text: Annotated[
        Path | None, typer.Option("--help-text", help="What the engine's own --help printed; it overrules the version.")
    ] = None,
    installed: Annotated[bool, typer.Option("--installed", help="Ask the engine installed here for its help.")] = False,
    model: Annotated[Path | None, typer.Option(help="The model's config.json or folder: checks what fits.")] = None,
    gpu: Annotated[str | None, typer.Option(help="The GPU, for example H100 or l40s.")] = None,
    rate: Annotated[str | None, typer.Option(help="Requests a second at the peak: checks the burst.")] = None,
    answer: Annotated[str, typer.Option(help="How long one request runs.")] = "5s",
    itl: Annotated[str, typer.Option(help="ITL promised.")] = "50ms",
    fix: Annotated[bool, typer.Option("--fix", help="Write the corrected script back.")] = False,
    fail_on: Annotated[
        Literal["error", "warning", "note", "never"], typer.Option("--fail-on", help="Exit 1 from this severity on.")
    ] = "error",
    json: Annotated[bool, typer.Option("--json", help="Findings as JSON on stdout.")] = False,
    sarif_file: Annotated[Path | None, typer.Option("--sarif", help="Write SARIF to this file; - is stdout.")] = None,
) -> ExitCode:
    """Check launch scripts of vLLM and SGLang. Exit 0: clean; 1: findings; 3: cannot be read or starts no engine."""
    request = _request(engine, help_text, installed, model, gpu, rate, answer, itl)
    reports: list[Report] = []
    for name, source, path in _sources(target):
        report = lint_text(source, name, request)
        if fix:
            report = _fixed(report, source, path, request)
        reports.append(report)
    _print(reports, json, sarif_file, fix)
    return _exit_code(reports, fail_on)


def _request(
    engine: str | None,
    help_text: Path | None,
    installed: bool,
    model: Path | None,
    gpu: str | None,
    rate: str | None,
    answer: str,
    itl: str,
) -> LintRequest:
    kind, version = parse_engine(engine) if engine is not None else (None, None)
    if gpu is not None and model is None:
        raise BadInputError("--gpu says nothing without a model", hint="add --model DIR, a folder with a config.json")
    try:
        return LintRequest(
            engine=kind,
            version=version,
            installed=_judge(kind, version, help_text, installed),
            shape=read_model(model) if model is not None else None,
            gpu=find_gpu(gpu) if gpu is not None else None,
            rate_per_s=parse_rate_per_s(rate) if rate is not None else None,
            answer_s=parse_duration_s(answer),
            itl_s=parse_duration_s(itl),
        )
    except ValueError as exc:
        raise BadInputError(str(exc), hint="for example --rate 200 --answer 5s --itl 50ms") from None


def _judge(engine: str | None, version: str | None, help_text: Path | None, installed: bool) -> OptionSet | None:
    if help_text is None and not installed:
        return None
    if engine is None:
        raise BadInputError("whose help is it?", hint="add --engine vllm or --engine sglang")
    if help_text is not None:
        return table(engine).from_help(parse_help(read_text(help_text)), version)
    return installed_options(engine)


def _sources(target: list[str]) -> list[tuple[str, str, Path | None]]:
    """Name, text and file of everything to judge."""
    files = [Path(word) for word in target]
    if target == ["-"]:
        return [("stdin", sys.stdin.read(LARGEST_SCRIPT_BYTES + 1), None)]
    if all(path.is_file() for path in files):
        return [(str(path), read_text(path), path) for path in files]
    if len(target) == 1 and " " not in target[0]:
        raise BadInputError(f"{target[0]}: there is no such file", hint="give a script, or a command line after --")
    line = target[0] if len(target) == 1 else shlex.join(target)
    return [("command line", line, None)]


def read_text(path: Path) -> str:
    """A text file of bounded size. Raises BadInputError."""
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_SCRIPT_BYTES + 1)
    except OSError as exc:
        raise BadInputError(
            f"{path} cannot be read: {exc.strerror}", hint="check the path and its permissions"
        ) from None
    if len(data) > LARGEST_SCRIPT_BYTES:
        raise BadInputError(f"{path} is larger than {LARGEST_SCRIPT_BYTES // 2**20} MiB", hint="give the script itself")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise BadInputError(f"{path} is not UTF-8 text", hint="give a script, compose file or manifest") from None


def _fixed(report: Report, source: str, path: Path | None, request: LintRequest) -> Report:
    """Writes the corrected text and judges what is left."""
    if report.fixed == source and path is not None:
        return report
    if path is None:
        print(report.fixed.rstrip("\n"))
        return lint_text(report.fixed, report.name, request)
    try:
        path.write_text(report.fixed, encoding="utf-8")
    except OSError as exc:
        raise BadInputError(f"{path} cannot be written: {exc.strerror}", hint="check its permissions") from None
    mended = sum(bool(finding.edits) for finding in report.findings)
    print(f"{path}: mended {mended} of {len(report.findings)} findings", file=sys.stderr)
    return lint_text(report.fixed, report.name, request)


def _print(reports: list[Report], json: bool, sarif_file: Path | None, fixed: bool) -> None:
    if sarif_file is not None:
        text = json_text.dumps(sarif(reports, __version__), indent=2)
        if str(sarif_file) == "-":
            print(text)
            return
        sarif_file.write_text(text + "\n", encoding="utf-8")
    if json:
        print(msgspec.json.format(msgspec.json.encode([_plain(report) for report in reports]), indent=2).decode())
        return
    for report in reports:
        _show(report, fixed)


def _plain(report: Report) -> dict[str, object]:
    findings = [{**msgspec.to_builtins(one), "severity": _NAMES[one.severity]} for one in report.findings]
    return {"name": report.name, "judged": report.judged, "remarks": report.remarks, "findings": findings}


def _show(report: Report, fixed: bool) -> None:
    stream = sys.stderr if fixed and report.name in ("stdin", "command line") else sys.stdout
    for finding in report.findings:
        place = f"{report.name}:{finding.line}:{finding.column}"
        print(f"{place}: {_NAMES[finding.severity]}: {finding.text} [{finding.rule}]", file=stream)
        for line in _details(finding):
            print(f"    {line}", file=stream)
    for remark in report.remarks:
        print(f"{report.name}: {remark}", file=stream)
    counts = [sum(one.severity is severity for one in report.findings) for severity in reversed(Severity)]
    mendable = sum(bool(one.edits) for one in report.findings)
    told = f"; --fix mends {mendable}" if mendable and not fixed else ""
    shown = ", ".join(
        f"{count} {what}{'s' * (count != 1)}" for count, what in zip(counts, ("error", "warning", "note"))
    )
    print(f"{report.name}: {shown}, judged as {', '.join(report.judged)}{told}", file=stream)


def _details(finding: Finding) -> list[str]:
    lines = [finding.why] if finding.why else []
    if finding.corrected:
        lines += [f"→ {line}" for line in finding.corrected.splitlines()]
    elif finding.edits:
        lines.append("→ (this line goes)")
    return lines + ([finding.advice] if finding.advice else [])


def _exit_code(reports: list[Report], fail_on: str) -> ExitCode:
    if fail_on == "never":
        return ExitCode.OK
    least = {"error": Severity.ERROR, "warning": Severity.WARNING, "note": Severity.NOTE}[fail_on]
    worst = max((report.worst or 0 for report in reports), default=0)
    return ExitCode.FAILED if worst >= least else ExitCode.OK
