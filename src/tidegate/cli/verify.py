"""`tidegate verify`: what runs against the lock, once or every so often."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer
from msgspec import Struct

from tidegate.errors import BadInputError, ExitCode, UnavailableError
from tidegate.spec.lock import Lock, signed_by
from tidegate.spec.lock_file import load_lock
from tidegate.tune.drift import Check, compare, drifted
from tidegate.tune.running import look
from tidegate.units import parse_duration_s
from tidegate.wire.prometheus import escape_label

LEAST_INTERVAL_S: Final = 1.0


class Verified(Struct, frozen=True, kw_only=True):
    """One instance and what was found."""

    pool: str
    instance: str
    url: str
    reached: bool
    why: str = ""
    """Why it could not be asked."""
    checks: list[Check] = []


def command(
    lock: Annotated[Path, typer.Argument(help="The lock.")] = Path("tidegate.lock"),
    instance: Annotated[list[str] | None, typer.Option(help="Only this instance of the lock, by name.")] = None,
    url: Annotated[str | None, typer.Option(help="Ask here instead; --instance says which one it is.")] = None,
    pid: Annotated[int | None, typer.Option(min=1, help="The engine's process, where its port does not tell.")] = None,
    model_dir: Annotated[Path | None, typer.Option(help="The model's folder here: compare its digests too.")] = None,
    key: Annotated[Path | None, typer.Option(help="Also check the lock's signature with this key.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="What nobody can tell counts as drift.")] = False,
    every: Annotated[str, typer.Option(help="Look again so often, until interrupted, as 1m.")] = "",
    textfile: Annotated[
        Path | None, typer.Option(help="Write metrics here for the node exporter's textfile collector.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print what was found as JSON.")] = False,
) -> ExitCode:
    """Compare what runs with the lock: command line, environment, version, cache, digests, driver.

    Exit 0: as locked; 1: drift; 3: the lock was edited by hand or cannot be read; 4: an instance does not answer.
    """
    read = load_lock(lock)
    if key is not None:
        _check_signature(read, key, lock)
    interval_s = _interval(every)
    wanted = _wanted(read, instance or [], url)
    if pid is not None and len(wanted) > 1:
        raise BadInputError("--pid is one instance's process", hint="say which with --instance")
    while True:
        found = [_look(read, *one, pid=pid, model_dir=model_dir) for one in wanted]
        if textfile is not None:
            _write(textfile, metrics(read, found, strict, time.time()))
        _print(found, strict, json)
        if interval_s is None:
            return _verdict(found, strict)
        time.sleep(interval_s)


def metrics(lock: Lock, found: list[Verified], strict: bool, now_s: float) -> str:
    """Prometheus text. Drift is a series per setting, so that an alert names it."""
    lines = ["# HELP tidegate_lock_matches 1 while the instance runs what the lock says.",
             "# TYPE tidegate_lock_matches gauge"]  # fmt: skip
    drift = ["# HELP tidegate_lock_drift Settings that differ from the lock.", "# TYPE tidegate_lock_drift gauge"]
    unknown = ["# HELP tidegate_lock_unknown_settings Settings that nobody could tell.",
               "# TYPE tidegate_lock_unknown_settings gauge"]  # fmt: skip
    for one in found:
        labels = f'pool="{escape_label(one.pool)}",instance_name="{escape_label(one.instance)}"'
        named = f'{labels},lock="{lock.hash.removeprefix("sha256:")[:12]}"'
        bad = drifted(one.checks, strict)
        if one.reached:
            lines.append(f"tidegate_lock_matches{{{named}}} {int(not bad)}")
        drift += [
            f'tidegate_lock_drift{{{labels},setting="{escape_label(check.setting)}",where="{check.where}"}} 1'
            for check in bad
        ]
        count = sum(check.verdict == "unknown" for check in one.checks)
        unknown.append(f"tidegate_lock_unknown_settings{{{labels}}} {count}")
    checked = ["# HELP tidegate_lock_checked_timestamp_seconds When this was looked at.",
               "# TYPE tidegate_lock_checked_timestamp_seconds gauge",
               f"tidegate_lock_checked_timestamp_seconds {now_s:.0f}"]  # fmt: skip
    return "\n".join([*lines, *drift, *unknown, *checked]) + "\n"


def _wanted(lock: Lock, names: list[str], url: str | None) -> list[tuple[str, str, str]]:
    """(pool, instance, URL) to look at."""
    known = [(pool.model, instance.name, instance.url) for pool in lock.cluster.pools for instance in pool.instances]
    missing = sorted(set(names) - {name for _, name, _ in known})
    if missing:
        listed = ", ".join(name for _, name, _ in known)
        raise BadInputError(f"the lock has no instance {missing[0]!r}", hint=f"it has {listed}")
    wanted = [one for one in known if not names or one[1] in names]
    if url is None:
        return wanted
    if len({pool for pool, _, _ in wanted}) > 1:
        raise BadInputError("--url could be of several pools", hint="say which instance it is with --instance")
    pool, name, _ = wanted[0]
    return [(pool, name if names else url, url)]


def _look(lock: Lock, pool: str, name: str, url: str, *, pid: int | None, model_dir: Path | None) -> Verified:
    try:
        seen = look(url, pid=pid, model_dir=model_dir)
    except UnavailableError as exc:
        return Verified(pool=pool, instance=name, url=url, reached=False, why=exc.message)
    return Verified(pool=pool, instance=name, url=url, reached=True, checks=compare(lock, pool, seen))


def _verdict(found: list[Verified], strict: bool) -> ExitCode:
    if any(drifted(one.checks, strict) for one in found):
        return ExitCode.FAILED
    return ExitCode.OK if all(one.reached for one in found) else ExitCode.UNAVAILABLE


def _print(found: list[Verified], strict: bool, json: bool) -> None:
    if json:
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        value: dict[str, Any] = {"at": now, "verdict": _verdict(found, strict).name.lower(), "instances": found}
        print(msgspec.json.encode(value).decode(), flush=True)
        return
    for one in found:
        if not one.reached:
            print(f"{one.instance}: {one.why}", file=sys.stderr)
            continue
        bad = drifted(one.checks, strict)
        unknown = [check for check in one.checks if check.verdict == "unknown" and check not in bad]
        same = len(one.checks) - len(bad) - len(unknown)
        print(f"{one.instance}: {'DRIFT' if bad else 'as locked'}; {same} settings the same", flush=True)
        for check in bad:
            print(f"  {check.setting} ({check.where}): locked {check.locked}, running {check.seen}")
        if unknown:
            print(f"  unknown: {', '.join(f'{check.setting} ({check.where})' for check in unknown)}")


def _interval(text: str) -> float | None:
    if not text:
        return None
    try:
        interval_s = parse_duration_s(text)
    except ValueError as exc:
        raise BadInputError(f"--every: {exc}") from None
    if interval_s < LEAST_INTERVAL_S:
        raise BadInputError(f"--every {text} is too often", hint="once a minute will do: 1m")
    return interval_s


def _check_signature(lock: Lock, key: Path, path: Path) -> None:
    try:
        secret = key.read_bytes().strip()
    except OSError as exc:
        raise BadInputError(f"{key}: cannot be read: {exc.strerror}", hint="give the file with the key") from None
    if not signed_by(lock, secret):
        why = "it is not signed" if lock.signature is None else "its signature is not by this key"
        raise BadInputError(f"{path}: {why}", hint="freeze it again with --key")


def _write(path: Path, text: str) -> None:
    """Whole or not at all: the collector may read at any moment."""
    draft = path.with_name(f".{path.name}.writing")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError as exc:
        raise UnavailableError(f"{path}: cannot be written: {exc.strerror}", hint="choose another --textfile") from None
