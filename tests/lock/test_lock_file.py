"""The lock on disk: what was written is read, one form has one hash, and an edit by hand is named by its line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from tidegate.errors import BadInputError, ExitCode
from tidegate.spec import (
    AdmissionSpec,
    ClusterSpec,
    EngineProfile,
    GatewaySpec,
    InstanceSpec,
    PhaseSpec,
    PoolSpec,
    QueueSpec,
    SloSpec,
    TrafficSpec,
)
from tidegate.spec.fields import sections
from tidegate.spec.lock import (
    Evidence,
    Lock,
    LockedEngine,
    LockedHardware,
    Results,
    advanced,
    canonical,
    config_hash,
    digest_of,
    hash_of_plain,
    make_lock,
    plain,
    signed,
    signed_by,
)
from tidegate.spec.lock_file import load_lock, lock_text, parse_lock
from tidegate.spec.lock_reference import page_text
from tidegate.spec.problem import SpecError
from tidegate.spec.schema import LOCK_SCHEMA_PATH, lock_schema_text

WRITTEN = "2026-01-31T08:15:00Z"
HEX = "0123456789abcdef" * 4


def cluster(**engine: Any) -> ClusterSpec:
    pool = PoolSpec(model="llama", instances=[InstanceSpec(url="http://10.0.0.7:8000")], engine=EngineProfile(**engine))
    traffic = TrafficSpec(phases=[PhaseSpec(name="steady", duration_s=60, rate=5)])
    return ClusterSpec(pools=[pool], traffic=traffic)


def engine(**changes: Any) -> LockedEngine:
    base = LockedEngine(
        model="llama",
        path="/models/llama",
        kind="vllm",
        version="0.33.0",
        hardware=LockedHardware(gpu="h100_sxm"),
        options=["--max-num-seqs 512", "--max-num-batched-tokens 1024"],
        env=["NCCL_NET_GDR_LEVEL=SYS"],
    )
    return msgspec.structs.replace(base, **changes)


def a_lock(evidence: list[Evidence] | None = None, **profile: Any) -> Lock:
    return make_lock(cluster(**profile), [engine()], written=WRITTEN, by="tidegate 0.1.0", evidence=evidence)


def proof(config: str, meets: bool = True) -> Evidence:
    return Evidence(
        source="twin", config=config, scenario="sha256:" + HEX, ttft_s=0.8, itl_s=0.05, seeds=[1, 2], requests=600,
        date=WRITTEN, meets_slo=meets, results=Results(goodput=0.97, ttft_p99_s=0.7, itl_p99_s=0.049),
    )  # fmt: skip


def line_of(text: str, needle: str) -> int:
    return next(number for number, line in enumerate(text.splitlines(), 1) if needle in line)


# --- writing and reading ----------------------------------------------------------------------------------------


def test_what_was_written_is_read() -> None:
    lock = a_lock([proof(a_lock().hash)], step_tokens=1024)
    again = parse_lock(lock_text(lock))
    assert msgspec.structs.replace(again, seal=[]) == lock
    assert lock_text(again) == lock_text(lock)


def test_people_read_quantities_and_one_value_to_a_line() -> None:
    text = lock_text(a_lock(step_tokens=1024))
    assert "    ttft: 800ms\n    itl: 50ms\n" in text
    assert "        step_tokens: 1024\n" in text
    assert '      - "--max-num-seqs 512"\n' in text
    changed = lock_text(a_lock(step_tokens=768))
    before, after = (part.split("\nseal:")[0].splitlines() for part in (text, changed))
    differing = [(a, b) for a, b in zip(before, after, strict=True) if a != b]
    assert [a.split(":")[0].strip() for a, _ in differing] == ["hash", "step_tokens"]


WORDS = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=40)


@example(options=["no", "on", "null", "Yes", "12", "1e3", "a: b", "# c"], path="\u2028\u00ad\ufeff", kv=None)
@given(options=st.lists(WORDS, max_size=4), path=WORDS, kv=st.none() | st.integers(0, 10**12))
def test_any_text_survives(options: list[str], path: str, kv: int | None) -> None:
    odd = engine(options=options, path=path, hardware=LockedHardware(gpu="l40s", kv_tokens=kv))
    lock = make_lock(cluster(), [odd], written=WRITTEN, by="tidegate")
    assert parse_lock(lock_text(lock)).engines == [odd]


def test_the_schema_is_the_types_and_takes_what_is_written() -> None:
    assert LOCK_SCHEMA_PATH.read_text("utf-8") == lock_schema_text(), "run: python -m tidegate.spec.schema"
    validator = jsonschema.Draft202012Validator(json.loads(lock_schema_text()))
    document = yaml.safe_load(lock_text(a_lock([proof(a_lock().hash)])))
    assert [error.message for error in validator.iter_errors(document)] == []
    assert list(validator.iter_errors({**document, "state": "melted"}))


def test_every_key_of_a_lock_is_described() -> None:
    assert not [f"{one.name}.{key.name}" for one in sections(Lock) for key in one.keys if not key.about]


# --- one form, one hash -----------------------------------------------------------------------------------------

NUMBERS = st.integers(-(2**40), 2**40) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
def test_the_order_of_keys_and_the_spelling_of_numbers_do_not_change_the_hash(value: Any) -> None:
    assert digest_of(_turned(value)) == digest_of(value)
    assert json.loads(canonical(value)) == json.loads(canonical(json.loads(canonical(value))))


def _turned(value: Any) -> Any:
    """The same value with keys in reverse order and whole numbers as floats where that is exact."""
    if isinstance(value, dict):
        return {key: _turned(value[key]) for key in reversed(list(value))}
    if isinstance(value, list):
        return [_turned(each) for each in value]
    if isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return value


@given(VALUES, VALUES)
def test_different_values_have_different_forms(one: Any, other: Any) -> None:
    assert (canonical(one) == canonical(other)) == (_same(one, other))


def _same(one: Any, other: Any) -> bool:
    """Equality in which true is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)


def test_a_default_written_out_is_the_default() -> None:
    whole = ClusterSpec(pools=cluster().pools, slo=SloSpec(ttft_s=0.8), gateway=GatewaySpec(queue=QueueSpec()))
    assert config_hash(whole, [engine()]) == config_hash(ClusterSpec(pools=cluster().pools), [engine()])


def test_the_hash_covers_what_runs_and_nothing_else() -> None:
    base = a_lock()
    other_traffic = msgspec.structs.replace(base.cluster, traffic=TrafficSpec(seed=7))
    assert config_hash(other_traffic, base.engines) == base.hash
    assert a_lock([proof(base.hash)]).hash == base.hash
    gateway = GatewaySpec(admission=AdmissionSpec(max_in_flight=64))
    runs_otherwise = [
        (msgspec.structs.replace(base.cluster, gateway=gateway), base.engines),
        (cluster(step_tokens=1024), base.engines),
        (base.cluster, [engine(version="0.32.0")]),
        (base.cluster, [engine(env=[])]),
    ]
    assert len({config_hash(*one) for one in runs_otherwise} | {base.hash}) == 5


# --- edited by hand ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "path"),
    [
        ("max_sequences: 1024", "max_sequences: 2048", "cluster.pools[0].engine.max_sequences"),
        ("itl: 50ms", "itl: 60ms", "cluster.slo.itl"),
        ("--max-num-seqs 512", "--max-num-seqs 4096", "engines[0].options[0]"),
        ("state: draft", "state: frozen", "state"),
        ("goodput: 0.97", "goodput: 0.99", "evidence[0].results.goodput"),
    ],
)
def test_an_edit_is_named_by_its_line(old: str, new: str, path: str) -> None:
    text = lock_text(a_lock([proof(a_lock().hash)]))
    edited = text.replace(old, new, 1)
    with pytest.raises(SpecError) as caught:
        parse_lock(edited, "t.lock")
    assert caught.value.exit_code == ExitCode.BAD_INPUT
    (problem,) = caught.value.problems
    assert problem.path == path
    assert problem.line == line_of(edited, new)
    assert "by hand" in problem.text


def test_a_line_taken_out_and_a_line_put_in_are_named() -> None:
    text = lock_text(a_lock())
    shorter = text.replace('      - "--max-num-seqs 512"\n', "")
    with pytest.raises(SpecError) as caught:
        parse_lock(shorter)
    assert any("by hand" in problem.text for problem in caught.value.problems)
    assert caught.value.problems[0].line in range(line_of(shorter, "options:"), line_of(shorter, "env:") + 2)
    keyless = text.replace("      driver: null\n", "")
    with pytest.raises(SpecError, match="a value that stood before this line was taken out by hand") as caught:
        parse_lock(keyless)
    assert caught.value.problems[0].line == line_of(keyless, "cuda: null")
    longer = text.replace('      - "--max-num-seqs 512"\n', '      - "--max-num-seqs 512"\n      - "--seed 3"\n')
    with pytest.raises(SpecError) as caught:
        parse_lock(longer)
    assert line_of(longer, "--seed 3") in [problem.line for problem in caught.value.problems]


def test_comments_and_spelling_may_change() -> None:
    text = lock_text(a_lock()).replace("itl: 50ms", "itl: 0.05 # as promised")
    assert parse_lock(text).cluster.slo.itl_s == 0.05


def test_a_seal_renewed_without_the_hash_does_not_help() -> None:
    lock = a_lock()
    other = msgspec.structs.replace(lock, cluster=cluster(step_tokens=4096))
    with pytest.raises(SpecError, match="the hash is not that of this configuration"):
        parse_lock(lock_text(other))


def test_a_lock_outlives_keys_that_a_later_tidegate_adds() -> None:
    """A key that the writer did not know is not in the file; its default is no edit."""
    lock = a_lock()
    known_then = plain(lock.cluster)
    del known_then["pools"][0]["engine"]["prefix_cache"]
    lines = lock_text(msgspec.structs.replace(lock, hash=hash_of_plain(known_then, plain(lock.engines)))).splitlines()
    at = next(number for number, line in enumerate(lines) if "prefix_cache: true" in line)
    sealed_before = [line for line in lines[:at] if not line.startswith("#") and not line.rstrip().endswith(":")]
    head, _, seal = "\n".join([*lines[:at], *lines[at + 1 :]]).partition("\nseal:")
    digests = re.findall(r"[0-9a-f]{8}", seal)
    del digests[len(sealed_before)]
    assert parse_lock(head + '\nseal: ["' + " ".join(digests) + '"]\n').cluster == lock.cluster


# --- what is no lock --------------------------------------------------------------------------------------------


def test_a_newer_lock_says_so() -> None:
    text = lock_text(a_lock()).replace("version: 1\n", "version: 7\nwarp: 9\n", 1)
    with pytest.raises(SpecError, match="this lock has format 7, and this Tidegate reads up to 1; upgrade Tidegate"):
        parse_lock(text)


def test_a_cluster_document_is_not_a_lock() -> None:
    with pytest.raises(SpecError, match="not a lock") as caught:
        parse_lock('version: 1\npools: [{model: m, instances: [{url: "http://h:1"}]}]\n')
    assert "freeze -c" in caught.value.hint


@pytest.mark.parametrize("text", ["", "[]", "state: 3", "version: 1", "version: 0\n"])
def test_nonsense_gets_a_sentence(text: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_lock(text, "x.lock")
    assert all(str(problem).startswith("x.lock") for problem in caught.value.problems)


def test_a_missing_file_is_named(tmp_path: Any) -> None:
    with pytest.raises(SpecError, match="there is no such file"):
        load_lock(tmp_path / "none.lock")


@given(st.text(max_size=60))
def test_no_text_breaks_the_reader(text: str) -> None:
    with pytest.raises(SpecError):
        parse_lock(text)


# --- states and signature ---------------------------------------------------------------------------------------


def test_the_way_is_draft_verified_frozen() -> None:
    lock = a_lock([proof(a_lock().hash)])
    frozen = advanced(advanced(lock, "verified", WRITTEN), "frozen", WRITTEN)
    assert frozen.state == "frozen"
    assert frozen.hash == lock.hash
    for start, end in ((lock, "frozen"), (frozen, "verified"), (frozen, "frozen"), (lock, "draft")):
        with pytest.raises(BadInputError, match="cannot become"):
            advanced(start, end, WRITTEN)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("evidence", "why"),
    [([], "no evidence"), ([proof("sha256:" + HEX)], "another configuration"), (None, "misses the SLO")],
)
def test_a_lock_is_verified_only_by_evidence_of_itself(evidence: list[Evidence] | None, why: str) -> None:
    lock = a_lock([proof(a_lock().hash, meets=False)] if evidence is None else evidence)
    with pytest.raises(BadInputError, match=why):
        advanced(lock, "verified", WRITTEN)


def test_a_signature_holds_for_exactly_what_was_signed() -> None:
    lock = parse_lock(lock_text(signed(a_lock(), b"secret")))
    assert signed_by(lock, b"secret")
    assert not signed_by(lock, b"other")
    assert not signed_by(msgspec.structs.replace(lock, state="frozen"), b"secret")
    assert not signed_by(a_lock(), b"secret")


def test_the_reference_page_is_the_types(repo_root: Path) -> None:
    page = (repo_root / "docs/reference/lock.md").read_text("utf-8")
    assert page == page_text(), "the types changed; run: python -m tidegate.spec.lock_reference"
