"""`tidegate diff`: what differs between two locks, or a lock and the defaults, what it is about and what it does."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from tidegate.errors import BadInputError, ExitCode
from tidegate.spec import ClusterSpec
from tidegate.spec.document import read_text
from tidegate.spec.lock import Lock, Results
from tidegate.spec.lock_file import inspect_lock
from tidegate.tune.difference import ABSENT, Difference, defaults_of, differences, from_defaults, with_effects
from tidegate.units import format_duration


def command(
    lock: Annotated[Path, typer.Argument(help="A lock.")],
    other: Annotated[Path | None, typer.Argument(help="Another lock, to compare the first with.")] = None,
    defaults: Annotated[bool, typer.Option("--defaults", help="Compare with what would run unasked.")] = False,
    effect: Annotated[
        bool,
        typer.Option("--effect/--no-effect", help="Simulate what each difference does alone, on the lock's traffic."),
    ] = True,
    json: Annotated[bool, typer.Option("--json", help="Print the differences as JSON.")] = False,
) -> ExitCode:
    """Compare a lock with another, or with the defaults. Exit 1 where they differ.

    `tidegate verify` compares a lock with what runs.
    """
    if (other is None) == (not defaults):
        raise BadInputError("give either a second lock or --defaults", hint="tidegate diff old.lock new.lock")
    left = _read(lock)
    if other is None:
        found, base = from_defaults(left), defaults_of(left)
        names = ("defaults", str(lock))
    else:
        found, base = differences(left, _read(other)), left.cluster
        names = (str(lock), str(other))
    results = None
    if effect and found and (base.traffic.phases or base.traffic.trace is not None):
        results, found = with_effects(base, found, lock.parent, _simulates if sys.stderr.isatty() else None)
    if json:
        print(msgspec.json.format(msgspec.json.encode(_plain(found, results, base)), indent=2).decode())
    else:
        _show(found, names, results)
    return ExitCode.FAILED if found else ExitCode.OK


def _read(path: Path) -> Lock:
    """A lock, edited by hand or not: to look at an edit is what diff is for."""
    lock, edits = inspect_lock(read_text(path), str(path))
    for edit in edits:
        print(f"warning: {edit}", file=sys.stderr)
    return lock


def _simulates(one: Difference) -> None:
    print(f"simulating {one.name} …", file=sys.stderr)


def _show(found: list[Difference], names: tuple[str, str], results: Results | None) -> None:
    if not found:
        print(f"{names[0]} and {names[1]} say the same")
        return
    print(f"--- {names[0]}\n+++ {names[1]}")
    if results is not None:
        print(f"{names[0]} in the twin: {results_line(results)}")
    for one in found:
        print(f"{one.name}: {shown(one.left)} → {shown(one.right)}")
        if one.about:
            print(f"    {one.about}")
        if one.effect is not None:
            print(f"    alone: {results_line(one.effect)}")
        elif one.effect_note:
            print(f"    {one.effect_note}")


def shown(value: Any) -> str:
    """A value as people read it."""
    if value is ABSENT:
        return "(not there)"
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if value != "" else '""'


def results_line(results: Results) -> str:
    """A twin's results in a few words."""

    def of(value: float | None, text: str) -> str:
        return "unknown" if value is None else text

    goodput, ttft_s, itl_s = results.goodput, results.ttft_p99_s, results.itl_p99_s
    return ", ".join((
        f"goodput {of(goodput, f'{goodput or 0:.1%}')}",
        f"P99 TTFT {of(ttft_s, format_duration(ttft_s or 0))}",
        f"P99 ITL {of(itl_s, format_duration(itl_s or 0))}",
    ))  # fmt: skip


def _plain(found: list[Difference], results: Results | None, base: ClusterSpec) -> dict[str, Any]:
    return {
        "results": results,
        "slo": base.slo,
        "differences": [
            {
                "path": one.name,
                "left": None if one.left is ABSENT else one.left,
                "right": None if one.right is ABSENT else one.right,
                "only_in": "right" if one.left is ABSENT else "left" if one.right is ABSENT else None,
                "about": one.about,
                "effect": one.effect,
                "effect_note": one.effect_note,
            }
            for one in found
        ],
    }
