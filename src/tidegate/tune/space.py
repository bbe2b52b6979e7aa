"""What may be changed: each knob with its values in order, for the engine and for the gateway.

In: a cluster document and what the operator holds fixed. Out: a `Space`; a `Setting` is one value for every knob. The
operator's own values are always among them, so that the present configuration is a point of the space. A neighbour is
one step on one knob.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from tidegate.errors import BadInputError
from tidegate.spec import AdmissionSpec, ClusterSpec, EngineProfile, InstanceSpec
from tidegate.twin.steptable import available, load

Value = int | float | str
Setting = dict[str, Value]

CONTEXT_STEP_TOKENS: Final = 1024
FIRST_NEW_PORT: Final = 8001


class Knob(Struct, frozen=True):
    """One thing to turn. `values` in ascending order where they have one, else in the order of preference."""

    name: str
    values: tuple[Value, ...]
    about: str


class Space(Struct, frozen=True):
    """All knobs. Knobs with one value are fixed and not searched."""

    knobs: tuple[Knob, ...]

    @property
    def free(self) -> tuple[Knob, ...]:
        return tuple(knob for knob in self.knobs if len(knob.values) > 1)

    @property
    def points(self) -> int:
        """How many settings there are."""
        count = 1
        for knob in self.knobs:
            count *= len(knob.values)
        return count

    def setting(self, indices: dict[str, int]) -> Setting:
        """The setting at these positions; a fixed knob has position 0."""
        return {knob.name: knob.values[indices.get(knob.name, 0)] for knob in self.knobs}

    def indices(self, setting: Setting) -> dict[str, int]:
        """Where a setting lies."""
        return {knob.name: knob.values.index(setting[knob.name]) for knob in self.free}

    def nearest(self, wanted: Setting) -> Setting:
        """The point that is closest to `wanted`, knob by knob; knobs it does not name take their first value."""
        return {knob.name: _closest(knob.values, wanted.get(knob.name, knob.values[0])) for knob in self.knobs}

    def settled(self, setting: Setting) -> Setting:
        """The one of several settings with the same effect: the gateway holds no more than the engine runs."""
        held, runs = setting.get("max_in_flight", 0), setting.get("max_sequences", 0)
        if _number(held) <= _number(runs):
            return setting
        values = next(knob.values for knob in self.knobs if knob.name == "max_in_flight")
        return {**setting, "max_in_flight": next(value for value in values if _number(value) >= _number(runs))}

    def neighbours(self, setting: Setting) -> list[tuple[str, Setting]]:
        """(knob, setting) one step away with another effect, downwards first."""
        found = []
        for knob in self.free:
            at = knob.values.index(setting[knob.name])
            for index in (at - 1, at + 1):
                if not 0 <= index < len(knob.values):
                    continue
                stepped = self.settled({**setting, knob.name: knob.values[index]})
                if stepped != setting:
                    found.append((knob.name, stepped))
        return found


def key_of(setting: Setting) -> str:
    """One text for one setting, whatever the order of its knobs."""
    return msgspec.json.encode(setting, order="sorted").decode()


STEP_TOKENS: Final = (256, 384, 512, 640, 768, 896, 1024, 1280, 1536, 2048, 3072, 4096, 8192, 16384)
MAX_SEQUENCES: Final = (32, 48, 64, 96, 128, 192, 256, 384, 512, 1024)
MEMORY_FRACTIONS: Final = (0.8, 0.85, 0.88, 0.9, 0.92, 0.94, 0.96)
_GATEWAY: Final[dict[str, tuple[Value, ...]]] = {
    "max_in_flight": (16, 32, 48, 64, 96, 128, 192, 256, 512),
    "max_prefill_tokens": (2048, 4096, 8192, 16384, 32768),
    "prefill_ahead_s": (0.05, 0.1, 0.2, 0.4, 0.8),
    "ttft_headroom": (0.6, 0.7, 0.8, 0.9, 1.0),
    "long_share": (0.25, 0.5, 0.75),
    "kv_high": (0.85, 0.9, 0.95, 1.0),
    "max_wait_s": (0.1, 0.2, 0.3, 0.5, 0.8, 1.6),
}
_ABOUT: Final = {
    "kind": "the engine",
    "gpus": "GPUs of one instance (tensor parallel); the other GPUs make more instances",
    "replicas": "instances",
    "weights": "number format of the weights: changes answers, so it is fixed unless freed",
    "kv_cache": "number format of the KV cache",
    "memory_fraction": "share of GPU memory the engine takes",
    "step_tokens": "token budget of one step: sets the longest gap and the prefill speed",
    "max_sequences": "requests in the running batch",
    "context_tokens": "longest prompt plus answer",
    "max_in_flight": "requests on one instance",
    "max_prefill_tokens": "prompt tokens sent to one instance whose first token is not out",
    "prefill_ahead_s": "prefill work an instance is given ahead",
    "ttft_headroom": "share of the TTFT that waiting and prefill may take: the shed mark",
    "long_share": "share of admitted prompt tokens for the long lane",
    "kv_high": "share of the KV blocks that may be claimed: the KV shed mark",
    "max_wait_s": "how long a request may queue",
}
NAMES: Final = tuple(_ABOUT)
HELD: Final = ("kind", "weights", "replicas")
"""Knobs that stay at the document's value unless freed: another engine, other answers, fewer GPUs."""


def space_of(
    spec: ClusterSpec,
    longest_tokens: int,
    *,
    free: Iterable[str] = (),
    fix: Iterable[str] = (),
    only: dict[str, Sequence[Value]] | None = None,
) -> Space:
    """The space around the first pool of `spec`, whose longest request takes `longest_tokens`.

    `free` opens held knobs, `fix` closes others, `only` names a knob's values. Raises `BadInputError` for a knob
    that does not exist.
    """
    given = only or {}
    freed, fixed = set(free), set(fix)
    unknown = sorted((freed | fixed | set(given)) - set(NAMES))
    if unknown:
        raise BadInputError(f"there is no knob {unknown[0]!r}", hint=f"knobs: {', '.join(NAMES)}")
    own = current(spec)
    values = _values(spec, longest_tokens, freed)
    knobs = []
    for name in NAMES:
        if name in given:
            chosen = tuple(given[name])
        elif name in fixed or (name in HELD and name not in freed):
            chosen = (own[name],)
        else:
            chosen = _with_own(values[name], own[name])
        knobs.append(Knob(name, chosen, _ABOUT[name]))
    return Space(tuple(knobs))


def current(spec: ClusterSpec) -> Setting:
    """Where the document itself lies."""
    engine, admission = spec.pools[0].engine, spec.gateway.admission
    found: Setting = {name: getattr(engine, name) for name in _ENGINE}
    found |= {name: getattr(admission, name) for name in _ADMISSION}
    return {**found, "replicas": len(spec.pools[0].instances), "max_wait_s": spec.gateway.queue.max_wait_s}


def applied(spec: ClusterSpec, setting: Setting) -> ClusterSpec:
    """`spec` with this setting in its first pool and gateway, admission on.

    The gateway never holds more requests on an instance than it runs: the rest would wait where no policy sees them.
    Where the GPUs of an instance change, the number of instances follows, within the GPUs there are.
    """
    pool = spec.pools[0]
    told: dict[str, Any] = msgspec.structs.asdict(pool.engine)
    told |= {name: setting[name] for name in _ENGINE if name in setting}
    engine = msgspec.convert(told, EngineProfile)
    count = _instances(spec, setting, engine.gpus)
    pools = [msgspec.structs.replace(pool, engine=engine, instances=_named(pool.instances, count)), *spec.pools[1:]]
    bounds: dict[str, Any] = msgspec.structs.asdict(spec.gateway.admission)
    bounds |= {name: setting[name] for name in _ADMISSION if name in setting}
    bounds["enabled"] = True
    bounds["max_in_flight"] = min(int(bounds["max_in_flight"]), engine.max_sequences)
    queue = spec.gateway.queue
    if "max_wait_s" in setting:
        queue = msgspec.structs.replace(queue, max_wait_s=float(setting["max_wait_s"]))
    gateway = msgspec.structs.replace(spec.gateway, admission=AdmissionSpec(**bounds), queue=queue)
    return msgspec.structs.replace(spec, pools=pools, gateway=gateway)


_ENGINE: Final = (
    "kind", "gpus", "weights", "kv_cache", "memory_fraction", "step_tokens", "max_sequences", "context_tokens",
)  # fmt: skip
_ADMISSION: Final = (
    "max_in_flight", "max_prefill_tokens", "prefill_ahead_s", "ttft_headroom", "long_share", "kv_high",
)  # fmt: skip


def total_gpus(spec: ClusterSpec) -> int:
    """GPUs of the first pool."""
    return spec.pools[0].engine.gpus * len(spec.pools[0].instances)


def _instances(spec: ClusterSpec, setting: Setting, gpus: int) -> int:
    """As many as before; more or fewer where their size changed; what the setting says, where the GPUs allow it."""
    most = max(1, total_gpus(spec) // gpus)
    if setting.get("replicas", len(spec.pools[0].instances)) != len(spec.pools[0].instances):
        return min(most, int(setting["replicas"]))
    return most


def _named(instances: Sequence[InstanceSpec], count: int) -> list[InstanceSpec]:
    """The first of those there are, then invented ones at further ports of the last one's host."""
    kept = list(instances[:count])
    taken = {one.url for one in instances}
    host, _, port = instances[-1].url.rpartition(":")
    number = int(port) if port.isdigit() else FIRST_NEW_PORT
    while len(kept) < count:
        number += 1
        url = f"{host}:{number}"
        if url not in taken:
            kept.append(InstanceSpec(url=url))
    return kept


def _values(spec: ClusterSpec, longest_tokens: int, freed: set[str]) -> dict[str, tuple[Value, ...]]:
    engine = spec.pools[0].engine
    kinds = [kind for kind in ("vllm", "sglang") if (engine.shape, engine.hardware, kind) in available()]
    needed = -(-longest_tokens // CONTEXT_STEP_TOKENS) * CONTEXT_STEP_TOKENS
    contexts = sorted({engine.context_tokens, min(needed, engine.context_tokens)})
    return {
        **_GATEWAY,
        "kind": tuple(kinds) or (engine.kind,),
        "gpus": _sizes(spec, freed),
        "replicas": tuple(range(1, len(spec.pools[0].instances) + 1)),
        "weights": tuple(sorted({_part(key, 1) for key in _configs(engine)})),
        "kv_cache": tuple(sorted({_part(key, 2).removeprefix("kv") for key in _configs(engine)})),
        "memory_fraction": MEMORY_FRACTIONS,
        "step_tokens": STEP_TOKENS,
        "max_sequences": MAX_SEQUENCES,
        "context_tokens": tuple(contexts),
    }


def _configs(engine: EngineProfile) -> list[str]:
    if (engine.shape, engine.hardware, engine.kind) not in available():
        return []
    return list(load(engine.shape, engine.hardware, engine.kind).configs)


def _sizes(spec: ClusterSpec, freed: set[str]) -> tuple[Value, ...]:
    """Tensor-parallel sizes with step tables that use all the GPUs."""
    engine, total = spec.pools[0].engine, total_gpus(spec)
    allowed = [key for key in _configs(engine) if "weights" in freed or _part(key, 1) == engine.weights]
    sizes = {int(_part(key, 0).removeprefix("tp")) for key in allowed}
    return tuple(sorted(size for size in sizes if size <= total and total % size == 0))


def _part(key: str, index: int) -> str:
    return key.split("_")[index]


def _with_own(values: Sequence[Value], own: Value) -> tuple[Value, ...]:
    """The values with the document's own put in its place."""
    if own in values:
        return tuple(values)
    if isinstance(own, str):
        return (own, *values)
    return tuple(sorted([*values, own], key=_number))


def _number(value: Value) -> float:
    return float(value) if not isinstance(value, str) else 0.0


def _closest(values: Sequence[Value], wanted: Value) -> Value:
    if wanted in values or isinstance(wanted, str):
        return wanted if wanted in values else values[0]
    distance: Callable[[Value], Any] = lambda value: abs(_number(value) - _number(wanted))  # noqa: E731
    return min(values, key=distance)
