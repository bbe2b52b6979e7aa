"""The lock: what was decided to run, why that is believed, and how far the decision has got (design.md §8).

    draft --evidence that meets the SLO--> verified --a person's word--> frozen
      ^------------------ any change -----------'----------------------------'

In: a `ClusterSpec` and what is known of the engines behind it. Out: `Lock`, its canonical form and its hash. The hash
covers what runs (cluster and engines), not the traffic it was judged on, the price of a GPU, the state or the evidence:
new evidence for the same configuration leaves it alone, and each piece of evidence names the hash it was found with.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct, field

from tidegate.errors import BadInputError
from tidegate.spec.cluster import ClusterSpec, Name
from tidegate.spec.quantity import Count, PositiveCount, PositiveSeconds, Text, Word

FORMAT: Final = 1
State = Literal["draft", "verified", "frozen"]
TRANSITIONS: Final = frozenset({("draft", "verified"), ("verified", "frozen")})
"""Forward steps. Back to draft leads only a change of the configuration, which is a new lock."""
NOT_RUN: Final = ("traffic", "cost")
"""Parts of the cluster document that decide nothing about what runs."""

Digest = Annotated[
    str,
    Meta(
        pattern=r"^sha256:[0-9a-f]{64}$",
        extra={"expects": "a digest like sha256: and 64 hex digits in lower case"},
    ),
]
Version = Annotated[
    str,
    Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,63}$", extra={"expects": "a version like 0.33.0"}),
]

EnvLine = Annotated[
    str,
    Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*=.{0,4000}$", extra={"expects": "an environment variable as NAME=value"}),
]


class LockedFiles(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Digests of what the engine loads; null where nobody has looked."""

    weights: Digest | None = None
    """Of the weight files' names and contents."""
    tokenizer: Digest | None = None
    """Of tokenizer.json, or of whatever tokenizer files there are."""
    chat_template: Digest | None = None
    """Of the chat template."""


class LockedHardware(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What stands under the engine; null where nobody has looked."""

    gpu: Word
    """The GPU, by the name of its step table."""
    driver: Version | None = None
    """Version of the NVIDIA driver."""
    cuda: Version | None = None
    """Version of CUDA."""
    nccl: Version | None = None
    """Version of NCCL: all hosts of one instance need the same."""
    kv_tokens: Count | None = None
    """Tokens of KV cache that one instance told of when it ran."""


class LockedEngine(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The engine of one pool, as it is launched."""

    model: Name
    """The pool it belongs to."""
    path: Text
    """What the launch line calls the model: a path or a hub name."""
    kind: Literal["vllm", "sglang"]
    """The engine."""
    version: Version
    """Its version."""
    image: Digest | None = None
    """Digest of the container image."""
    files: LockedFiles = LockedFiles()
    """What it loads."""
    hardware: LockedHardware
    """What it runs on."""
    options: list[Text] = []
    """Its command line, an option with its value to a line; address and port are the instances' own."""
    env: list[EnvLine] = []
    """Environment variables, as NAME=value."""
    defaults: list[Text] = []
    """What this version does unasked, for options that decide memory and scheduling and are not set."""
    remarks: list[Text] = []
    """What could not be told to this version as the profile has it, a sentence each."""


class Results(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Figures of the worst seed (docs/concepts/measuring.md); null where unknown."""

    goodput: float | None = None
    """Share of all sent requests that met every SLO."""
    ttft_p99_s: PositiveSeconds | None = field(default=None, name="ttft_p99")
    """P99 of the time to the first token, of requests that got one."""
    itl_p99_s: PositiveSeconds | None = field(default=None, name="itl_p99")
    """P99 of the gaps between tokens."""
    output_tokens_per_s: float | None = None
    """Output tokens of completed requests."""
    cost_per_m_output: float | None = None
    """Money per million output tokens."""
    kv_peak: float | None = None
    """Highest use of any KV cache."""
    preemptions: Count | None = None
    """Requests thrown out of a KV cache and computed again."""


class Evidence(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One reason to believe in the configuration."""

    source: Literal["twin", "emulated", "live"]
    """Simulated, run on emulated engines, or run on real ones."""
    config: Digest
    """Hash of the configuration it was found with."""
    scenario: Digest
    """Hash of the traffic."""
    ttft_s: PositiveSeconds = field(name="ttft")
    """The SLO it was judged by: time to the first token."""
    itl_s: PositiveSeconds = field(name="itl")
    """The SLO it was judged by: gap between tokens."""
    seeds: Annotated[list[Count], Meta(min_length=1)]
    """Each was run."""
    requests: PositiveCount
    """Requests sent, of all seeds."""
    date: Text
    """When, ISO 8601 UTC."""
    meets_slo: bool
    """Both percentiles within the SLO for every seed."""
    results: Results = Results()
    """The worst seed's figures."""


class Lock(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A whole `tidegate.lock`."""

    version: Literal[1] = 1
    """The format of this file."""
    state: State = "draft"
    """How far it is: draft, verified, frozen."""
    written: Text
    """When, ISO 8601 UTC."""
    by: Text
    """The Tidegate that wrote it."""
    hash: Digest
    """Of what runs: cluster and engines without traffic and cost."""
    cluster: ClusterSpec
    """The cluster document with every value written out, defaults included."""
    engines: Annotated[list[LockedEngine], Meta(min_length=1)]
    """One for each pool of the cluster."""
    evidence: list[Evidence] = []
    """Why this configuration is believed to keep the SLO."""
    signature: Text | None = None
    """HMAC-SHA256 of everything else, by whoever holds the key."""
    seal: list[Text] = []
    """A short digest of each value above, so that an edit by hand can be named by its line."""

    def engine_of(self, model: str) -> LockedEngine:
        """The engine of a pool. Raises `BadInputError` that lists the pools."""
        for engine in self.engines:
            if engine.model == model:
                return engine
        known = ", ".join(engine.model for engine in self.engines)
        raise BadInputError(f"the lock has no engine for {model!r}", hint=f"it has {known}")


def plain(value: Any) -> Any:
    """A struct as plain values, numbers in one form: 1.0 is 1, -0.0 is 0."""
    return _settled(msgspec.to_builtins(value))


def canonical(value: Any) -> bytes:
    """The one way to write a value for hashing: JSON, keys sorted, defaults written out, no spaces."""
    return msgspec.json.encode(plain(value), order="sorted")


def digest_of(value: Any) -> str:
    """`sha256:` and the hex digest of a value's canonical form."""
    return "sha256:" + hashlib.sha256(canonical(value)).hexdigest()


def config_hash(cluster: ClusterSpec, engines: list[LockedEngine]) -> str:
    """The hash of what runs."""
    return hash_of_plain(plain(cluster), plain(engines))


def hash_of_plain(cluster: dict[str, Any], engines: list[Any]) -> str:
    """As `config_hash`, of the plain values that a file holds: keys that a later Tidegate added are not in them."""
    runs = {key: value for key, value in cluster.items() if key not in NOT_RUN}
    return digest_of({"format": FORMAT, "cluster": runs, "engines": engines})


def make_lock(
    cluster: ClusterSpec, engines: list[LockedEngine], *, written: str, by: str, evidence: list[Evidence] | None = None
) -> Lock:
    """A draft."""
    return Lock(
        written=written,
        by=by,
        hash=config_hash(cluster, engines),
        cluster=cluster,
        engines=engines,
        evidence=evidence or [],
    )


def advanced(lock: Lock, state: State, written: str) -> Lock:
    """`lock` one step on. Raises `BadInputError` when the step is not legal or not earned."""
    if (lock.state, state) not in TRANSITIONS:
        hint = "the way is draft, verified, frozen; a change of the configuration begins a new draft"
        raise BadInputError(f"a lock that is {lock.state} cannot become {state}", hint=hint)
    found_here = [one for one in lock.evidence if one.config == lock.hash]
    if not any(one.meets_slo for one in found_here):
        raise BadInputError(f"the lock cannot become {state}: {_lacking(lock, found_here)}", hint=_EVIDENCE_HINT)
    return msgspec.structs.replace(lock, state=state, written=written, signature=None)


_EVIDENCE_HINT: Final = "`tidegate freeze --seeds 3` adds a simulation, `--run runs/ID` a recorded load run"


def _lacking(lock: Lock, found_here: list[Evidence]) -> str:
    if found_here:
        return "its evidence misses the SLO"
    return "its evidence is of another configuration" if lock.evidence else "it has no evidence"


def signature_of(lock: Lock, key: bytes) -> str:
    """HMAC-SHA256 over everything but seal and signature."""
    bare = msgspec.structs.replace(lock, signature=None, seal=[])
    return "hmac-sha256:" + hmac.new(key, canonical(bare), hashlib.sha256).hexdigest()


def signed(lock: Lock, key: bytes) -> Lock:
    """`lock` with its signature."""
    return msgspec.structs.replace(lock, signature=signature_of(lock, key))


def signed_by(lock: Lock, key: bytes) -> bool:
    """Whether the holder of `key` signed exactly this."""
    return lock.signature is not None and hmac.compare_digest(lock.signature, signature_of(lock, key))


def _settled(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _settled(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_settled(each) for each in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value
