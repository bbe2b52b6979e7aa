"""`tidegate freeze`: a cluster document becomes a lock, and a lock goes from draft to verified to frozen."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer

from tidegate.engines.versions import parse_engine
from tidegate.errors import BadInputError, ExitCode, UnavailableError
from tidegate.spec import ClusterSpec, load_spec
from tidegate.spec.lock import Evidence, Lock, LockedFiles, advanced, signed
from tidegate.spec.lock_file import load_lock, lock_text
from tidegate.traffic.store import read_run
from tidegate.tune.digests import digest_folder, nvidia_driver
from tidegate.tune.evidence import run_evidence, twin_evidence
from tidegate.tune.freeze import Known, freeze
from tidegate.tune.running import look

STEPS = {"draft": (), "verified": ("verified",), "frozen": ("verified", "frozen")}


def command(
    config: Annotated[Path, typer.Option("--config", "-c", help="The cluster to lock.")] = Path("tidegate.yaml"),
    lock: Annotated[
        Path | None, typer.Option(help="Take this lock on instead: more evidence, or the next state.")
    ] = None,
    engine: Annotated[
        list[str] | None, typer.Option(help="Engine and version, as vllm==0.33.0; once for each kind in use.")
    ] = None,
    model_dir: Annotated[
        Path | None, typer.Option(help="The model's folder: digests of weights, tokenizer and chat template.")
    ] = None,
    model_path: Annotated[str, typer.Option(help="What the engines call the model. [default: the pool's name]")] = "",
    image: Annotated[str | None, typer.Option(help="Digest of the container image, sha256:…")] = None,
    driver: Annotated[
        str | None, typer.Option(help="NVIDIA driver of the engines' hosts. [default: this host's]")
    ] = None,
    cuda: Annotated[str | None, typer.Option(help="CUDA version of the engines.")] = None,
    nccl: Annotated[str | None, typer.Option(help="NCCL version of the engines.")] = None,
    kv_tokens: Annotated[int | None, typer.Option(min=0, help="KV tokens an instance told of.")] = None,
    ask: Annotated[
        bool, typer.Option("--ask", help="Ask the engines that run for their version and KV tokens.")
    ] = False,
    seeds: Annotated[int, typer.Option(min=0, max=100, help="Simulate this many seeds as evidence; 0: none.")] = 3,
    run: Annotated[list[Path] | None, typer.Option(help="A recorded load run of this configuration.")] = None,
    state: Annotated[Literal["draft", "verified", "frozen"], typer.Option(help="How far to go.")] = "draft",
    key: Annotated[Path | None, typer.Option(help="Sign with the key in this file (HMAC-SHA256).")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Where the lock goes.")] = Path("tidegate.lock"),
    break_glass: Annotated[bool, typer.Option("--break-glass", help="Replace a frozen lock.")] = False,
) -> ExitCode:
    """Write tidegate.lock: effective values, engine, hardware, policy and the evidence for them.

    Without evidence that meets the SLO a lock stays a draft; a frozen lock is replaced only with --break-glass.
    """
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    if lock is not None:
        made, base_dir, out = load_lock(lock), lock.parent, lock
    else:
        spec, base_dir = load_spec(config), config.parent
        _check_replaceable(out, break_glass)
        files = digest_folder(model_dir) if model_dir is not None else LockedFiles()
        facts = {"image": image, "driver": driver or nvidia_driver(), "cuda": cuda, "nccl": nccl,
                 "kv_tokens": kv_tokens}  # fmt: skip
        known = _known(spec, engine or [], model_path, files, facts)
        made = freeze(spec, _asked(spec, known, model_path, files, facts) if ask else known, written=now)
    made = _with_evidence(made, base_dir, seeds if lock is None else 0, run or [], now)
    made = _taken_on(made, state, now)
    write_lock(signed(made, _read_key(key)) if key is not None else made, out)
    _say(made, out)
    return ExitCode.OK


def write_lock(lock: Lock, path: Path) -> None:
    """Writes a lock whole or not at all. Raises `UnavailableError`."""
    draft = path.with_name(f".{path.name}.writing")
    try:
        draft.write_text(lock_text(lock), encoding="utf-8")
        draft.replace(path)
    except OSError as exc:
        raise UnavailableError(f"{path}: cannot be written: {exc.strerror}", hint="choose another --out") from None


def _check_replaceable(path: Path, break_glass: bool) -> None:
    if path.exists() and not break_glass and load_lock(path).state == "frozen":
        hint = "change it with --break-glass, or write elsewhere with --out"
        raise BadInputError(f"{path} is frozen", hint=hint)


def _known(
    spec: ClusterSpec, engines: list[str], path: str, files: LockedFiles, facts: dict[str, str | int | None]
) -> dict[str, Known]:
    versions: dict[str, str] = {}
    for text in engines:
        kind, version = parse_engine(text)
        if version is None:
            raise BadInputError(f"--engine {text} names no version", hint=f"write for example {kind}==0.33.0")
        versions[kind] = version
    given = {name: value for name, value in facts.items() if value is not None}
    found = {}
    for pool in spec.pools:
        if pool.engine.kind in versions:
            found[pool.model] = msgspec.convert(
                {"version": versions[pool.engine.kind], "path": path, "files": msgspec.to_builtins(files), **given},
                Known,
            )
    return found


def _asked(
    spec: ClusterSpec, known: dict[str, Known], path: str, files: LockedFiles, facts: dict[str, str | int | None]
) -> dict[str, Known]:
    """What every instance says of itself. Raises `BadInputError` where two, or they and `--engine`, differ."""
    found = {}
    for pool in spec.pools:
        seen = [look(instance.url) for instance in pool.instances]
        versions = {one.version for one in seen} | ({known[pool.model].version} if pool.model in known else set())
        if len(versions) != 1 or None in versions:
            told = ", ".join(sorted(str(version) for version in versions))
            raise BadInputError(f"the instances of {pool.model} are not of one version: {told}", hint="make them so")
        base = known.get(pool.model) or Known(version=str(versions.pop()), path=path, files=files)
        sizes = [one.kv_tokens for one in seen if one.kv_tokens is not None]
        tokens = facts["kv_tokens"] if facts["kv_tokens"] is not None else min(sizes, default=None)
        found[pool.model] = msgspec.structs.replace(base, kv_tokens=tokens)
    return found


def _with_evidence(lock: Lock, base_dir: Path, seeds: int, runs: list[Path], now: str) -> Lock:
    """The lock with what was found for exactly this configuration."""
    found: list[Evidence] = [*lock.evidence]
    spec = lock.cluster
    if seeds and (spec.traffic.phases or spec.traffic.trace is not None):
        numbers = range(spec.traffic.seed, spec.traffic.seed + seeds)
        found.append(twin_evidence(spec, base_dir, numbers, config=lock.hash, date=now, progress=_seed_runs))
    elif seeds:
        print("no evidence simulated: the cluster document has no traffic", file=sys.stderr)
    found += [run_evidence(read_run(path), spec.slo, config=lock.hash) for path in runs]
    signature = lock.signature if found == lock.evidence else None
    return msgspec.structs.replace(lock, evidence=found, signature=signature)


def _taken_on(lock: Lock, state: str, now: str) -> Lock:
    for step in STEPS[state]:
        if lock.state != step and not (lock.state == "frozen" and step == "verified"):
            lock = advanced(lock, step, now)  # type: ignore[arg-type]
    return lock


def _seed_runs(seed: int) -> None:
    print(f"simulating seed {seed} …", file=sys.stderr)


def _read_key(path: Path) -> bytes:
    try:
        key = path.read_bytes().strip()
    except OSError as exc:
        raise BadInputError(f"{path}: cannot be read: {exc.strerror}", hint="give a file with a secret") from None
    if len(key) < 16:
        raise BadInputError(f"{path}: a key has at least 16 bytes", hint="openssl rand -hex 32 > FILE")
    return key


def _say(lock: Lock, path: Path) -> None:
    print(f"{path}: {lock.state}, {lock.hash[:19]}")
    for engine in lock.engines:
        for remark in engine.remarks:
            print(f"  {engine.model}: {remark}")
    for one in lock.evidence:
        verdict = "meets the SLO" if one.meets_slo else "misses the SLO"
        goodput = "unknown" if one.results.goodput is None else f"{one.results.goodput:.1%}"
        print(f"  evidence: {one.source}, seeds {', '.join(map(str, one.seeds))}: {verdict}, goodput {goodput}")
    if lock.state != "draft" and all(one.source == "twin" for one in lock.evidence):
        print("  its evidence is simulated only; add a load run with --lock and --run", file=sys.stderr)
