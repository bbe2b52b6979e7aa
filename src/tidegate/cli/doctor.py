"""`tidegate doctor`: symptom, cause and fix from logs, metric pages and configuration."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, BinaryIO, Final

import msgspec
import typer

from tidegate.cli.lint import read_text
from tidegate.engines.doctor import Confidence, Diagnosis, Examination
from tidegate.engines.doctor.logs import BLOCK_BYTES
from tidegate.engines.lint import LintRequest
from tidegate.engines.scripts import read_launches
from tidegate.engines.versions import parse_engine
from tidegate.errors import BadInputError, ExitCode

_HEAD_BYTES: Final = 64 * 1024
_CONFIG_SUFFIXES: Final = (".sh", ".bash", ".yaml", ".yml", ".json")


def command(
    files: Annotated[
        list[Path] | None, typer.Argument(help="Logs, metric pages and configuration; - is a log on stdin.")
    ] = None,
    log: Annotated[list[Path] | None, typer.Option(help="A log, whatever it looks like.")] = None,
    metrics: Annotated[
        list[Path] | None, typer.Option(help="A page of /metrics; twice, taken apart in time, shows progress.")
    ] = None,
    config: Annotated[
        list[Path] | None, typer.Option(help="A launch script, manifest, dashboard or rule file.")
    ] = None,
    engine: Annotated[str | None, typer.Option(help="Judge launch scripts as this, for example vllm==0.33.0.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Diagnoses as JSON on stdout.")] = False,
) -> ExitCode:
    """Find what is wrong. Exit 0: nothing found; 1: something; 3: a file cannot be read."""
    kind, version = parse_engine(engine) if engine is not None else (None, None)
    examination = Examination(LintRequest(engine=kind, version=version))
    given = [*(files or []), *(log or []), *(metrics or []), *(config or [])]
    if not given:
        raise BadInputError(
            "there is nothing to look at", hint="give log files, saved /metrics pages or launch scripts"
        )
    for path in files or []:
        _any(examination, path)
    for path in log or []:
        _log(examination, path)
    for path in metrics or []:
        examination.page(str(path), read_page(path))
    for path in config or []:
        examination.config(str(path), read_text(path))
    found = examination.diagnoses()
    if json:
        print(msgspec.json.format(msgspec.json.encode([_plain(one) for one in found]), indent=2).decode())
    else:
        _show(found, len(given))
    return ExitCode.FAILED if any(one.confidence >= Confidence.MEDIUM for one in found) else ExitCode.OK


def read_page(path: Path) -> str:
    """A saved page of metrics. Raises BadInputError."""
    text = read_text(path)
    if "{" not in text and "# TYPE" not in text:
        raise BadInputError(f"{path} is no page of metrics", hint="save one with: curl -s URL/metrics > page.txt")
    return text


def _any(examination: Examination, path: Path) -> None:
    """Tells a page from a configuration from a log by its beginning."""
    if str(path) == "-":
        _feed(examination, "stdin", sys.stdin.buffer)
        return
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError as exc:
        raise BadInputError(
            f"{path} cannot be read: {exc.strerror}", hint="check the path and its permissions"
        ) from None
    if b"# TYPE " in head[:4096] or b"# HELP " in head[:4096]:
        examination.page(str(path), read_page(path))
    elif path.suffix in _CONFIG_SUFFIXES or _starts_engine(head):
        examination.config(str(path), read_text(path))
    else:
        _log(examination, path)


def _starts_engine(head: bytes) -> bool:
    if len(head) == _HEAD_BYTES or not head.startswith(b"#!"):
        return False
    try:
        return bool(read_launches(head.decode("utf-8", errors="replace"), "head"))
    except BadInputError:
        return False


def _log(examination: Examination, path: Path) -> None:
    try:
        with path.open("rb") as file:
            _feed(examination, str(path), file)
    except OSError as exc:
        raise BadInputError(
            f"{path} cannot be read: {exc.strerror}", hint="check the path and its permissions"
        ) from None


def _feed(examination: Examination, name: str, file: BinaryIO) -> None:
    scan = examination.log(name)
    while data := file.read(BLOCK_BYTES):
        scan.feed(data)
    scan.close()


def _plain(one: Diagnosis) -> dict[str, object]:
    return {**msgspec.to_builtins(one), "confidence": one.confidence.name.lower()}


def _show(found: list[Diagnosis], count: int) -> None:
    for index, one in enumerate(found, 1):
        seen = f", seen {one.count} times" if one.count > 1 else ""
        print(f"{index}. {one.title} [{one.id}] ({one.confidence.name.lower()} confidence{seen})")
        for evidence in one.evidence:
            print(f"   evidence  {evidence}")
        print(f"   cause     {one.cause}")
        for fix in one.fix:
            print(f"   fix       {fix}")
        if one.try_command:
            print(f"   try       {one.try_command}")
        if one.reference:
            print(f"   see       {one.reference}")
        print()
    shown = f"{len(found)} finding{'s' * (len(found) != 1)}" if found else "nothing found"
    print(f"{shown} in {count} file{'s' * (count != 1)}")
