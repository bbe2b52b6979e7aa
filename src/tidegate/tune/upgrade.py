"""What another engine version changes: options it drops or gains, defaults that moved, metrics that are gone.

In: a lock, an engine and a version. Out: an `Upgrade` with a new draft. The draft says the same in the other version's
words; its evidence must be found again. The twin's step times are those of one recorded version of each engine: it
shows what changed settings do, not how much faster another version computes.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from tidegate.engines.notes import notes
from tidegate.engines.optiontable import EngineTable, table
from tidegate.engines.versions import parse_version
from tidegate.errors import BadInputError
from tidegate.spec.lock import Lock, LockedEngine, make_lock
from tidegate.tune.freeze import Known, freeze


class MovedDefault(Struct, frozen=True, kw_only=True):
    """A default that differs between the two versions."""

    option: str
    was: str
    now: str
    set_in_lock: bool
    """Whether the lock says it anyway, so that nothing changes."""


class GoneMetric(Struct, frozen=True, kw_only=True):
    """A metric that dashboards may still read."""

    name: str
    now: str
    """What it is called now; empty where nothing took its place, or nobody has noted what did."""
    why: str


class PoolUpgrade(Struct, frozen=True, kw_only=True):
    """One pool's change."""

    model: str
    before: str
    after: str
    note: str
    """How sure the tables are of the new version; empty when it is recorded."""
    dropped: list[str]
    """Options of the lock that the new version is not told."""
    added: list[str]
    remarks: list[str]
    """Why, a sentence each."""
    defaults: list[MovedDefault]
    metrics: list[GoneMetric]


class Upgrade(Struct, frozen=True, kw_only=True):
    """All pools of the engine, and the new draft."""

    pools: list[PoolUpgrade]
    draft: Lock


def upgrade(lock: Lock, kind: str, version: str, *, written: str) -> Upgrade:
    """What `kind` `version` changes. Raises `BadInputError` when the lock has no such engine, or has that version."""
    mine = [engine for engine in lock.engines if engine.kind == kind]
    if not mine:
        kinds = ", ".join(sorted({engine.kind for engine in lock.engines}))
        raise BadInputError(f"the lock has no {kind} engine", hint=f"it has {kinds}")
    if all(engine.version == version for engine in mine):
        raise BadInputError(f"the lock has {kind} {version} already", hint="name another version")
    known = {one.model: _known(one, version if one.kind == kind else one.version) for one in lock.engines}
    fresh = freeze(lock.cluster, known, written=written)
    engines = [msgspec.structs.replace(new, env=old.env) for old, new in zip(lock.engines, fresh.engines, strict=True)]
    draft = make_lock(lock.cluster, engines, written=written, by=fresh.by)
    pools = [
        _pool(old, new) for old, new in zip(lock.engines, draft.engines, strict=True) if old.version != new.version
    ]
    return Upgrade(pools=pools, draft=draft)


def _known(engine: LockedEngine, version: str) -> Known:
    """What stays known: the files and the host; image, CUDA, NCCL and KV tokens are the other version's to tell."""
    hardware = engine.hardware
    same = version == engine.version
    return Known(
        version=version,
        path=engine.path,
        image=engine.image if same else None,
        files=engine.files,
        driver=hardware.driver,
        cuda=hardware.cuda if same else None,
        nccl=hardware.nccl if same else None,
        kv_tokens=hardware.kv_tokens if same else None,
    )


def _pool(old: LockedEngine, new: LockedEngine) -> PoolUpgrade:
    known = table(old.kind)
    return PoolUpgrade(
        model=old.model,
        before=old.version,
        after=new.version,
        note=known.resolve(new.version)[1],
        dropped=[line for line in old.options if line not in new.options],
        added=[line for line in new.options if line not in old.options],
        remarks=[sentence for sentence in new.remarks if sentence not in old.remarks],
        defaults=_moved(old, new),
        metrics=_gone(known, old.version, new.version),
    )


def _moved(old: LockedEngine, new: LockedEngine) -> list[MovedDefault]:
    """Noted changes between the versions, and recorded defaults that differ."""
    before, after = parse_version(old.version), parse_version(new.version)
    told = {line.split()[0] for line in new.options}
    found: dict[str, MovedDefault] = {}
    for change in notes(old.kind).defaults:
        if min(before, after) < parse_version(change.since) <= max(before, after):
            was, now = (change.was, change.now) if before < after else (change.now, change.was)
            found[change.option] = MovedDefault(
                option=change.option, was=was, now=now, set_in_lock=change.option in told
            )
    was_unasked, now_unasked = (dict(line.split(" ", 1) for line in each.defaults) for each in (old, new))
    for option, was in was_unasked.items():
        now = now_unasked.get(option, was)
        if now != was and option not in found:
            found[option] = MovedDefault(option=option, was=was, now=now, set_in_lock=option in told)
    return list(found.values())


def _gone(known: EngineTable, before: str, after: str) -> list[GoneMetric]:
    changes = notes(known.engine).metrics
    found = []
    for name, spans in sorted(known.file.metrics.items()):
        if known.within(spans, before) and known.within(spans, after) is False:
            change = changes.get(name)
            found.append(
                GoneMetric(
                    name=name,
                    now=change.to if change is not None else "",
                    why=change.why if change is not None else "",
                )
            )
    return found
