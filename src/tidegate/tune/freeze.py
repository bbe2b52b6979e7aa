"""From a cluster document to a lock: what each engine version is told, and what it does unasked.

In: a `ClusterSpec`, what is known of each pool's engine (`Known`), evidence. Out: a draft `Lock`. The command line
comes from the dialect of the engine's version, so that the lock holds the words that version takes.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec import Struct

from tidegate import __version__
from tidegate.engines.launch import Launch, launch
from tidegate.engines.optiontable import OptionSet, table
from tidegate.engines.profile import of_pool
from tidegate.errors import BadInputError
from tidegate.spec import ClusterSpec, PoolSpec
from tidegate.spec.lock import Evidence, Lock, LockedEngine, LockedFiles, LockedHardware, make_lock

BY: Final = f"tidegate {__version__}"
ENTRY_WORDS: Final = 3
"""`python3 -m MODULE` in front of every launch's options."""
DECISIVE: Final = re.compile(
    r"--(max-(num|model|long|running|total|prefill|queued)|num-|kv-|gpu-memory|mem-fraction|block-size|page-size|schedul"
    r"|async-scheduling|enable-prefix|enable-chunked|long-prefill|chunked|cudagraph|enforce-eager|attention-backend"
    r"|tensor-parallel|pipeline-parallel|data-parallel-size|swap-space|cpu-offload|dtype|quantization|watermark)"
)
"""Options that decide memory and scheduling: their defaults are part of what runs."""
_NOTHING: Final = ("", "None")


class Known(Struct, frozen=True, kw_only=True):
    """What is known of a pool's engine beyond its profile. None: nobody has looked."""

    version: str
    path: str = ""
    """What the launch line calls the model; the pool's name by default."""
    image: str | None = None
    files: LockedFiles = LockedFiles()
    driver: str | None = None
    cuda: str | None = None
    nccl: str | None = None
    kv_tokens: int | None = None


def freeze(spec: ClusterSpec, known: dict[str, Known], *, written: str, evidence: list[Evidence] | None = None) -> Lock:
    """A draft of `spec`; `known` is by pool. Raises `BadInputError` for a pool that cannot be launched."""
    missing = [pool.model for pool in spec.pools if pool.model not in known]
    if missing:
        raise BadInputError(f"no engine version is known for {', '.join(missing)}", hint="add --engine vllm==0.33.0")
    drain_s = math.ceil(spec.gateway.drain_s)
    engines = [locked_engine(pool, known[pool.model], drain_s) for pool in spec.pools]
    return make_lock(spec, engines, written=written, by=BY, evidence=evidence)


def locked_engine(pool: PoolSpec, known: Known, drain_s: int) -> LockedEngine:
    """How one pool is launched. vLLM is told to let streams go on for `drain_s` after SIGTERM; SGLang does unasked."""
    profile = of_pool(pool.engine, known.path or pool.model)
    if profile.kind == "vllm":
        profile = msgspec.structs.replace(profile, drain_s=drain_s)
    if known.path and known.path != pool.model:
        profile = msgspec.structs.replace(profile, served_name=pool.model)
    engines = table(profile.kind)
    options = engines.options(known.version)
    made = launch(profile, options)
    _, note = engines.resolve(known.version)
    return LockedEngine(
        model=pool.model,
        path=known.path or pool.model,
        kind=profile.kind,
        version=known.version,
        image=known.image,
        files=known.files,
        hardware=LockedHardware(
            gpu=pool.engine.hardware,
            driver=known.driver,
            cuda=known.cuda,
            nccl=known.nccl,
            kv_tokens=known.kv_tokens,
        ),
        options=option_lines(made),
        env=[f"{name}={value}" for name, value in sorted(made.env.items())],
        defaults=default_lines(options, option_lines(made)),
        remarks=[*made.adaptations, *([note] if note else [])],
    )


def option_lines(made: Launch) -> list[str]:
    """The launch's options, each with its values on one line, as a shell would take them."""
    lines: list[list[str]] = []
    for word in made.argv[ENTRY_WORDS:]:
        if word.startswith("--") or not lines:
            lines.append([word])
        else:
            lines[-1].append(word)
    return [shlex.join(line) for line in lines]


def default_lines(options: OptionSet, written: Iterable[str]) -> list[str]:
    """What the version does unasked where it matters; empty where no help of that version was recorded."""
    asked = {line.split()[0] for line in written}
    asked |= {option.canonical for name in asked if (option := options.find(name)) is not None}
    found = []
    for option in options.options.values():
        mine = option.name == option.canonical and option.name not in asked and DECISIVE.match(option.name)
        if mine and option.default is not None and option.default not in _NOTHING:
            found.append(f"{option.name} {option.default}")
    return sorted(found)
