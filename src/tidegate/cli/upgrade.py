"""`tidegate upgrade`: what another engine version changes, and a new draft for it."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from tidegate.cli.diff import results_line
from tidegate.cli.freeze import write_lock
from tidegate.engines.versions import parse_engine
from tidegate.errors import BadInputError, ExitCode
from tidegate.spec.lock import Evidence, Lock
from tidegate.spec.lock_file import load_lock
from tidegate.tune.evidence import twin_evidence
from tidegate.tune.upgrade import PoolUpgrade, upgrade


def command(
    lock: Annotated[Path, typer.Argument(help="The lock as it is.")] = Path("tidegate.lock"),
    engine: Annotated[str, typer.Option(help="Engine and new version, as vllm==0.33.0.")] = "",
    seeds: Annotated[int, typer.Option(min=0, max=100, help="Simulate this many seeds again; 0: none.")] = 3,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Where the draft goes. [default: beside, as NAME.next]")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the changes as JSON.")] = False,
) -> ExitCode:
    """Show what another engine version drops, adds and does unasked, simulate again, and write a new draft.

    Exit 1 when a setting of the lock cannot be carried over, or the SLO is missed.
    """
    if not engine:
        raise BadInputError("to which version?", hint="add --engine vllm==0.33.0")
    kind, version = parse_engine(engine)
    if version is None:
        raise BadInputError(f"--engine {engine} names no version", hint=f"write for example {kind}==0.33.0")
    old = load_lock(lock)
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    found = upgrade(old, kind, version, written=now)
    proof = _proof(found.draft, lock.parent, seeds, now)
    draft = msgspec.structs.replace(found.draft, evidence=[proof] if proof is not None else [])
    path = out or lock.with_name(lock.name + ".next")
    write_lock(draft, path)
    if json:
        print(msgspec.json.format(msgspec.json.encode({"pools": found.pools, "evidence": proof}), indent=2).decode())
    else:
        for pool in found.pools:
            print("\n".join(_lines(pool)))
        _compare(old, proof)
    print(f"draft: {path}", file=sys.stderr)
    lost = any(pool.dropped for pool in found.pools)
    return ExitCode.FAILED if lost or (proof is not None and not proof.meets_slo) else ExitCode.OK


def _proof(draft: Lock, base_dir: Path, seeds: int, now: str) -> Evidence | None:
    traffic = draft.cluster.traffic
    if not seeds or (not traffic.phases and traffic.trace is None):
        return None
    numbers = range(traffic.seed, traffic.seed + seeds)
    return twin_evidence(draft.cluster, base_dir, numbers, config=draft.hash, date=now)


def _lines(pool: PoolUpgrade) -> list[str]:
    lines = [f"{pool.model}: {pool.before} → {pool.after}"]
    lines += [f"  {pool.note}"] if pool.note else []
    lines += [f"  dropped: {line}" for line in pool.dropped]
    lines += [f"  new:     {line}" for line in pool.added]
    lines += [f"  {sentence}" for sentence in pool.remarks]
    for moved in pool.defaults:
        effect = "the lock sets it: nothing changes" if moved.set_in_lock else "NOT SET IN THE LOCK: this changes"
        lines.append(f"  default of {moved.option}: {moved.was} → {moved.now} ({effect})")
    for metric in pool.metrics:
        lines.append(f"  metric gone: {metric.name}" + (f", now {metric.now}" if metric.now else ""))
    return lines if len(lines) > 1 else [*lines, "  no option, default or metric of the lock changes"]


def _compare(old: Lock, proof: Evidence | None) -> None:
    if proof is None:
        print("nothing was simulated: the draft has no evidence")
        return
    before = next((one for one in reversed(old.evidence) if one.config == old.hash and one.source == "twin"), None)
    if before is not None:
        print(f"before, in the twin: {results_line(before.results)}")
    verdict = "meets the SLO" if proof.meets_slo else "misses the SLO"
    print(f"after, in the twin:  {results_line(proof.results)}: {verdict}")
    print("the twin's step times are of one engine version: prove the draft with a load run before it is frozen")
