"""Drift: what runs against what the lock says, setting by setting.

In: a `Lock`, a pool, what was seen (`Running`). Out: `Check`s: the same, drifted, or unknown. Unknown is not the same,
and no drift either: it is said, and `strict` callers refuse it. The command line is read as the engine's own parser
would (aliases, `--name=value`, `--no-…`), so that another spelling is no drift.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from tidegate.engines.optiontable import OptionSet, table
from tidegate.errors import BadInputError
from tidegate.spec import EngineProfile, load_spec
from tidegate.spec.lock import Lock, LockedEngine
from tidegate.tune.running import Running

Verdict = Literal["same", "drift", "unknown"]
KV_TOLERANCE: Final = 0.01
"""A restart of the same engine found up to this share more or fewer KV tokens."""
OWN_OPTIONS: Final = frozenset({"--host", "--port", "--api-key", "--uds", "--ssl-keyfile", "--ssl-certfile"})
"""Address and keys are the instance's, not the lock's."""
DECISIVE_ENV: Final = re.compile(r"(VLLM|SGLANG|SGL|NCCL|TORCH|PYTORCH|FLASHINFER|TRITON)_|CUDA_(DEVICE_MAX|MODULE)")
"""Variables that change what an engine does; others in its environment are nobody's business."""
_VALUES: Final = {"true": "true", "false": "false", "none": "none"}
_SET: Final = "set"
_ABSENT: Final = "not set"


class Check(Struct, frozen=True, kw_only=True):
    """One setting. `where` says who told: command line, environment, metrics, version …"""

    setting: str
    where: str
    locked: str
    seen: str
    verdict: Verdict


def compare(lock: Lock, model: str, seen: Running) -> list[Check]:
    """Every check of one instance of the pool `model`."""
    engine = lock.engine_of(model)
    profile = next(pool.engine for pool in lock.cluster.pools if pool.model == model)
    checks = [
        _check("version", "engine", engine.version, _release(seen.version, engine.version)),
        _check("model", "engine", model, seen.model),
        _check("context_tokens", "engine", profile.context_tokens, seen.context_tokens),
    ]
    checks += _emulated(profile, seen) if seen.emulated else _process(engine, seen)
    checks += _told(engine, profile, seen)
    if engine.hardware.kv_tokens is not None:
        checks.append(_kv(engine.hardware.kv_tokens, seen.kv_tokens))
    if engine.hardware.driver is not None:
        checks.append(_check("driver", "host", engine.hardware.driver, seen.driver))
    for name in ("weights", "tokenizer", "chat_template"):
        digest = getattr(engine.files, name)
        if digest is not None:
            checks.append(_check(name, "files", digest, getattr(seen.files, name) if seen.files is not None else None))
    if seen.env is not None and "TIDEGATE_LOCK" in seen.env:
        checks.append(_check("lock", "environment", lock.hash, seen.env["TIDEGATE_LOCK"]))
    return checks


def drifted(checks: Sequence[Check], strict: bool = False) -> list[Check]:
    """Those that are not as the lock says; with `strict` also what nobody could tell."""
    return [one for one in checks if one.verdict == "drift" or (strict and one.verdict == "unknown")]


# --- the command line -------------------------------------------------------------------------------------------


def options_in(words: Sequence[str], options: OptionSet) -> dict[str, str]:
    """A command line as canonical names and values; flags are `set`, negated ones `off`."""
    found: dict[str, str] = {}
    at = 0
    while at < len(words):
        name, equals, value = words[at].partition("=")
        at += 1
        if not name.startswith("-"):
            if name and not found:
                found["--model"] = name  # `vllm serve MODEL`
            continue
        known = options.find(name)
        if known is None:
            completed = options.abbreviated(name)
            known = completed[0] if len(completed) == 1 else None
        values = [value] if equals else []
        many = known is not None and known.kind == "list"
        wants = known.takes_value if known is not None else True
        while not equals and wants and at < len(words) and not _is_option(words[at]) and (many or not values):
            values.append(words[at])
            at += 1
        canonical = known.canonical if known is not None else name
        off = known is not None and known.kind == "off"
        found[canonical] = "off" if off else " ".join(values) or _SET
    return found


def _process(engine: LockedEngine, seen: Running) -> list[Check]:
    checks: list[Check] = []
    if seen.argv is None:
        if seen.server is None:
            checks.append(Check(setting="command line", where="process", locked="as locked", seen="not seen",
                                verdict="unknown"))  # fmt: skip
    else:
        checks += _command_line(engine, seen.argv)
    if seen.env is None:
        if engine.env:
            checks.append(Check(setting="environment", where="process", locked="as locked", seen="not seen",
                                verdict="unknown"))  # fmt: skip
        return checks
    wanted = dict(line.split("=", 1) for line in engine.env)
    extra = [name for name in sorted(seen.env) if name not in wanted and DECISIVE_ENV.match(name)]
    for name in [*wanted, *extra]:
        checks.append(_check(name, "environment", wanted.get(name, _ABSENT), seen.env.get(name, _ABSENT)))
    return checks


def _command_line(engine: LockedEngine, argv: Sequence[str]) -> list[Check]:
    options = table(engine.kind).options(engine.version)
    wanted = options_in([word for line in engine.options for word in shlex.split(line)], options)
    found = options_in(_after_entry(argv), options)
    names = [*wanted, *(name for name in found if name not in wanted)]
    return [
        _check(name, "command line", wanted.get(name, _ABSENT), found.get(name, _ABSENT))
        for name in names
        if name not in OWN_OPTIONS
    ]


def _after_entry(argv: Sequence[str]) -> list[str]:
    """What follows `… -m MODULE` or `… vllm serve`."""
    words = list(argv)
    if "-m" in words[:3]:
        return words[words.index("-m") + 2 :]
    return words[words.index("serve") + 1 :] if "serve" in words[:3] else words[1:]


def _is_option(word: str) -> bool:
    return word.startswith("--") or (len(word) > 1 and word[0] == "-" and not word[1].isdigit())


# --- what engines say of themselves -----------------------------------------------------------------------------


def _told(engine: LockedEngine, profile: EngineProfile, seen: Running) -> list[Check]:
    if seen.server is not None:
        return _sglang(engine, seen.server)
    cache = seen.cache
    if engine.kind != "vllm":
        return []
    if cache is None:
        return [Check(setting="cache configuration", where="metrics", locked="as locked", seen="not told",
                      verdict="unknown")]  # fmt: skip
    kv_format = "auto" if profile.kv_cache == "bf16" else profile.kv_cache
    return [
        _check("block_tokens", "metrics", profile.block_tokens, cache.get("block_size")),
        _check("kv_cache", "metrics", kv_format, cache.get("cache_dtype")),
        _check("memory_fraction", "metrics", profile.memory_fraction, cache.get("gpu_memory_utilization")),
        _check("prefix_cache", "metrics", profile.prefix_cache, cache.get("enable_prefix_caching")),
    ]


def _sglang(engine: LockedEngine, server: dict[str, Any]) -> list[Check]:
    """SGLang tells every argument by the name of its option."""
    options = table(engine.kind).options(engine.version)
    checks = []
    for name, value in options_in([word for line in engine.options for word in shlex.split(line)], options).items():
        key = name.removeprefix("--").replace("-", "_")
        if key not in server:
            continue
        told = server[key]
        seen = _SET if told is True else _ABSENT if told in (None, False) else told
        checks.append(_check(name, "server_info", value, seen))
    return checks


def _emulated(profile: EngineProfile, seen: Running) -> list[Check]:
    """An emulated engine is told its profile in Tidegate's own words, or takes it from a cluster document."""
    counters = seen.counters or {}
    checks = [
        _check(name, "counters", getattr(profile, name), counters.get(name))
        for name in ("shape", "hardware", "gpus", "block_tokens")
    ]
    runs = emulated_profile(seen.argv) if seen.argv is not None else None
    for name in ("weights", "kv_cache", "memory_fraction", "step_tokens", "max_sequences", "prefix_cache"):
        told = getattr(runs, name) if runs is not None else None
        checks.append(_check(name, "command line", getattr(profile, name), told))
    return checks


def emulated_profile(argv: Sequence[str]) -> EngineProfile | None:
    """The profile that `tidegate emulate` runs with by its command line; None where that cannot be told."""
    words = list(argv)
    if "emulate" not in words:
        return None
    given = _words(words[words.index("emulate") + 1 :])
    profile = EngineProfile()
    config = given.get("config") or given.get("c")
    if config is not None:
        try:
            pools = load_spec(config).pools
        except BadInputError:
            return None
        wanted = given.get("instance")
        pool = next((one for one in pools if wanted in (None, *(each.name for each in one.instances))), None)
        if pool is None:
            return None
        profile = pool.engine
    return _overlaid(profile, given)


def _words(words: Sequence[str]) -> dict[str, str]:
    """`--name value`, `--name=value`, `--flag`, `--no-flag`, by name with underscores."""
    found: dict[str, str] = {}
    for at, word in enumerate(words):
        if not word.startswith("-"):
            continue
        name, equals, value = word.lstrip("-").partition("=")
        name = name.replace("-", "_")
        following = words[at + 1] if at + 1 < len(words) and not words[at + 1].startswith("-") else ""
        if name.startswith("no_") and not equals:
            found[name.removeprefix("no_")] = "false"
        else:
            found[name] = value if equals else following or "true"
    return found


def _overlaid(profile: EngineProfile, given: dict[str, str]) -> EngineProfile | None:
    values: dict[str, Any] = msgspec.structs.asdict(profile)
    values |= {name: given[name] for name in values if name in given}
    try:
        return msgspec.convert(values, EngineProfile, strict=False)
    except msgspec.ValidationError:
        return None


# --- values -----------------------------------------------------------------------------------------------------


def _kv(locked: int, seen: int | None) -> Check:
    near = seen is not None and abs(seen - locked) <= KV_TOLERANCE * locked
    verdict: Verdict = "unknown" if seen is None else "same" if near else "drift"
    return Check(setting="kv_tokens", where="metrics", locked=str(locked), seen=_text(seen), verdict=verdict)


def _check(setting: str, where: str, locked: Any, seen: Any) -> Check:
    one, other = _text(locked), _text(seen)
    verdict: Verdict = "unknown" if seen is None else "same" if _same(one, other) else "drift"
    return Check(setting=setting, where=where, locked=one, seen=other, verdict=verdict)


def _same(one: str, other: str) -> bool:
    if one == other:
        return True
    try:
        return float(one) == float(other)
    except ValueError:
        return False


def _text(value: Any) -> str:
    """As it is compared and shown: booleans alike, whoever wrote them."""
    if value is None:
        return "unknown"
    text = str(value)
    return _VALUES.get(text.lower(), text)


def _release(seen: str | None, locked: str) -> str | None:
    """A build of the same release counts as that release: 0.33.0+cu130 is 0.33.0."""
    if seen is not None and re.fullmatch(re.escape(locked) + r"[+.].*", seen) is not None:
        return locked
    return seen
