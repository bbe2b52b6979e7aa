"""What differs between two configurations, what each difference is about, and what it does in the twin.

In: two locks, or a lock and what the engine would do unasked. Out: `Difference`s by path. List entries go by their name
where they have one (an instance, a pool, an option), so that an entry put in front does not change all that follow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from tidegate.errors import BadInputError
from tidegate.spec import ClusterSpec, EngineProfile, GatewaySpec
from tidegate.spec.fields import sections
from tidegate.spec.lock import Lock, Results, plain
from tidegate.traffic.figures import figures_of
from tidegate.traffic.schedule import plan, planned_marks
from tidegate.tune.evidence import results_of
from tidegate.twin.cluster import simulate

Path_ = tuple[str, ...]
COMPARED: Final = ("state", "cluster", "engines")
NAMES: Final = ("name", "model", "url")
"""Keys that name an entry of a list, first found first."""
WORD_LISTS: Final = ("options", "defaults")
"""Lists of `--name value` lines: compared by name."""
SIMULATED: Final = (("engine",), ("gateway", "admission"), ("gateway", "queue"), ("gateway", "retry"), ("slo",))
"""Parts of a cluster that the twin knows to act on."""


class Absent(Struct, frozen=True):
    """Stands where one side has nothing."""


ABSENT: Final = Absent()


class Difference(Struct, frozen=True, kw_only=True):
    """One value that is not the same. `effect` is the twin's result with only this changed on the left side."""

    path: Path_
    left: Any
    right: Any
    about: str = ""
    effect: Results | None = None
    effect_note: str = ""
    """Why there is no effect, where one was looked for."""

    @property
    def name(self) -> str:
        """`cluster.pools[llama].engine.step_tokens`."""
        return "".join(part if part.startswith("[") else f".{part}" for part in self.path).removeprefix(".")


def flat(value: Any, path: Path_ = ()) -> dict[Path_, Any]:
    """Every value that is no mapping and no list with entries, by its path."""
    if isinstance(value, dict) and value:
        pairs: Iterable[tuple[str, Any]] = value.items()
    elif isinstance(value, list) and value:
        pairs = _named(value, path[-1] if path else "")
    else:
        return {path: value}
    found: dict[Path_, Any] = {}
    for key, each in pairs:
        found |= flat(each, (*path, key))
    return found


def compare(left: Any, right: Any) -> list[Difference]:
    """Every difference between two plain values, in the left one's order, then what only the right one has."""
    before, after = flat(left), flat(right)
    found = [
        Difference(path=path, left=value, right=after.get(path, ABSENT))
        for path, value in before.items()
        if not _equal(after.get(path, ABSENT), value)
    ]
    return found + [
        Difference(path=path, left=ABSENT, right=value) for path, value in after.items() if path not in before
    ]


def differences(left: Lock, right: Lock) -> list[Difference]:
    """Between two locks, explained. Traffic and prices are compared too; evidence, dates and seals are not."""
    sides = [{key: plain(lock)[key] for key in COMPARED} for lock in (left, right)]
    return [_explained(one) for one in compare(*sides)]


def from_defaults(lock: Lock) -> list[Difference]:
    """What the lock sets otherwise than engine and gateway would unasked (left: defaults, right: the lock)."""
    return [_explained(one) for one in compare({"cluster": plain(defaults_of(lock))}, {"cluster": plain(lock.cluster)})]


def defaults_of(lock: Lock) -> ClusterSpec:
    """The same cluster as it would run unasked: engine defaults (vLLM's on 8×H100), gateway defaults."""
    pools = []
    for pool in lock.cluster.pools:
        own = pool.engine
        unasked = EngineProfile(
            kind=own.kind, shape=own.shape, hardware=own.hardware, gpus=own.gpus, weights=own.weights
        )
        pools.append(msgspec.structs.replace(pool, engine=unasked))
    addresses = lock.cluster.gateway
    gateway = GatewaySpec(listen=addresses.listen, admin=addresses.admin)
    return msgspec.structs.replace(lock.cluster, pools=pools, gateway=gateway)


def with_effects(
    cluster: ClusterSpec,
    found: list[Difference],
    base_dir: Path,
    progress: Callable[[Difference], None] | None = None,
) -> tuple[Results, list[Difference]]:
    """The twin's results of `cluster` as it is, and each difference with the results of it alone."""
    told = []
    for one in found:
        if progress is not None:
            progress(one)
        told.append(_with_effect(cluster, one, base_dir))
    return simulated(cluster, base_dir), told


def simulated(cluster: ClusterSpec, base_dir: Path) -> Results:
    """The twin's results for a cluster on its own traffic. Raises `BadInputError` when it cannot start or has none."""
    plans = plan(cluster.traffic, base_dir)
    return results_of(figures_of(simulate(cluster, plans, marks=planned_marks(cluster.traffic, plans))))


def _with_effect(cluster: ClusterSpec, one: Difference, base_dir: Path) -> Difference:
    if not _simulable(one):
        return one
    changed = plain(cluster)
    _set(changed, one.path[1:], one.right)
    try:
        other = msgspec.convert(changed, ClusterSpec)
        return msgspec.structs.replace(one, effect=simulated(other, base_dir))
    except (BadInputError, msgspec.ValidationError) as exc:
        note = exc.message if isinstance(exc, BadInputError) else str(exc)
        return msgspec.structs.replace(one, effect_note=f"alone it would not start: {note}")


def _simulable(one: Difference) -> bool:
    if one.path[0] != "cluster" or ABSENT in (one.left, one.right):
        return False
    inner = tuple(part for part in one.path[1:] if part != "pools" and not part.startswith("["))
    return any(inner[: len(part)] == part for part in SIMULATED)


def _set(value: Any, path: Path_, new: Any) -> None:
    """Puts `new` at `path` inside plain values."""
    for depth, part in enumerate(path):
        key: Any = part
        if isinstance(value, list):
            names = [name for name, _ in _named(value, path[depth - 1] if depth else "")]
            key = names.index(part)
        if depth == len(path) - 1:
            value[key] = new
        else:
            value = value[key]


def _named(values: list[Any], under: str) -> list[tuple[str, Any]]:
    """Entries with their names in brackets; by position where names are missing or not unique."""
    if under in WORD_LISTS and all(isinstance(each, str) for each in values):
        pairs = [(f"[{each.split(' ')[0]}]", each.partition(" ")[2]) for each in values]
    elif under == "env" and all(isinstance(each, str) for each in values):
        pairs = [(f"[{each.partition('=')[0]}]", each.partition("=")[2]) for each in values]
    else:
        pairs = [(f"[{_name(each, index)}]", each) for index, each in enumerate(values)]
    if len({name for name, _ in pairs}) < len(pairs):
        return [(f"[{index}]", each) for index, each in enumerate(values)]
    return pairs


def _name(value: Any, index: int) -> str:
    if isinstance(value, dict):
        return next((str(value[key]) for key in NAMES if isinstance(value.get(key), str)), str(index))
    return str(index)


def _equal(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)


def _explained(one: Difference) -> Difference:
    place = [part for part in one.path if not part.startswith("[")]
    pattern = ".".join(part + ("[]" if below.startswith("[") else "") for part, below in _pairs(one.path))
    about = _abouts().get(pattern) or _abouts().get(".".join(place)) or ""
    return msgspec.structs.replace(one, about=about)


def _pairs(path: Path_) -> list[tuple[str, str]]:
    return [(part, below) for part, below in zip(path, (*path[1:], "")) if not part.startswith("[")]


def _abouts() -> dict[str, str]:
    """What each key is about, by its path with `[]` for list entries."""
    if not _ABOUTS:
        for section in sections(Lock):
            for key in section.keys:
                place = f"{section.path}.{key.name}".removeprefix(".")
                _ABOUTS[place] = _ABOUTS[place + "[]"] = key.about
    return _ABOUTS


_ABOUTS: Final[dict[str, str]] = {}
