"""Rules that span fields: what types alone cannot say.

In: a `ClusterSpec` whose fields are sound by themselves. Out: (path, sentence) per broken rule; the sentence says
what clashes, with the numbers, and what to change. Paths are those of the YAML document.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from tidegate.spec.cluster import ClusterSpec, GatewaySpec, TenantSpec
from tidegate.spec.profile import EngineProfile
from tidegate.spec.traffic import LengthSpec, PhaseSpec, TrafficSpec
from tidegate.units import write_bytes, write_duration

Finding = tuple[str, str]

MAX_PORT: Final = 65_535
MAX_PLANNED_REQUESTS: Final = 50_000_000
"""A run keeps a record of every request; more than this is a slip of the pen, not a test."""
_EVERYWHERE: Final = ("0.0.0.0", "[::]")
_LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")


def broken_rules(spec: ClusterSpec) -> Iterator[Finding]:
    """(path, sentence) for every rule that `spec` breaks."""
    yield from _pools(spec)
    yield from _addresses(spec)
    yield from _gateway(spec.gateway)
    yield from _tenants(spec.tenants)
    yield from _traffic(spec.traffic)
    yield from _lengths(spec.traffic.lengths)
    if spec.traffic.phases:
        yield from _context(spec)


def host_and_port(address: str) -> tuple[str, int]:
    """`host:port` (IPv6 in brackets) apart; the host in lower case, port 80 where none is written."""
    host, colon, port = address.rpartition(":")
    if not colon or port.endswith("]"):
        return address.lower(), 80
    return host.lower(), int(port)


def _repeated(named: Iterable[tuple[str, object]], what: str) -> Iterator[Finding]:
    """Findings for every value that was seen before, pointing at the later path and naming the first."""
    first: dict[object, str] = {}
    for path, value in named:
        if value in first:
            yield path, f"{what} {_label(value)} is taken by {first[value]}; give each its own"
        first.setdefault(value, path)


def _label(value: object) -> str:
    return f"{value[0]}:{value[1]}" if isinstance(value, tuple) else repr(value)


def _pools(spec: ClusterSpec) -> Iterator[Finding]:
    yield from _repeated(((f"pools[{i}].model", pool.model) for i, pool in enumerate(spec.pools)), "model")
    instances = [
        (f"pools[{i}].instances[{j}]", instance)
        for i, pool in enumerate(spec.pools)
        for j, instance in enumerate(pool.instances)
    ]
    yield from _repeated(((f"{path}.name", instance.name) for path, instance in instances), "instance name")
    yield from _repeated(((f"{path}.url", _endpoint(instance.url)) for path, instance in instances), "address")
    for i, pool in enumerate(spec.pools):
        yield from _engine(pool.engine, f"pools[{i}].engine")


def _endpoint(url: str) -> tuple[str, int]:
    return host_and_port(url.removeprefix("http://"))


def _engine(engine: EngineProfile, path: str) -> Iterator[Finding]:
    if engine.step_tokens < engine.block_tokens:
        text = f"a step of {engine.step_tokens} tokens cannot fill one block of {engine.block_tokens} (block_tokens)"
        yield f"{path}.step_tokens", f"{text}; raise step_tokens or lower block_tokens"
    if engine.context_tokens < engine.block_tokens:
        text = f"{engine.context_tokens} tokens are less than one block of {engine.block_tokens} (block_tokens)"
        yield f"{path}.context_tokens", f"{text}; raise context_tokens or lower block_tokens"
    if engine.kind == "vllm" and engine.step_tokens < engine.max_sequences:
        text = f"{engine.max_sequences} sequences need a token each per step, but step_tokens is {engine.step_tokens}"
        yield f"{path}.max_sequences", f"{text} and vLLM refuses to start; lower max_sequences or raise step_tokens"
    if engine.hardware.lower().startswith("a100"):
        for key, value in (("weights", engine.weights), ("kv_cache", engine.kv_cache)):
            if value == "fp8":
                yield f"{path}.{key}", f"{engine.hardware} has no fp8; write {key}: bf16"


def _addresses(spec: ClusterSpec) -> Iterator[Finding]:
    listen, admin = host_and_port(spec.gateway.listen), host_and_port(spec.gateway.admin)
    for key, address in (("listen", listen), ("admin", admin)):
        if address[1] > MAX_PORT:
            yield f"gateway.{key}", f"port {address[1]} is above {MAX_PORT}"
    if _clash(listen, admin):
        text = f"{spec.gateway.admin} clashes with gateway.listen ({spec.gateway.listen}); give each its own port"
        yield "gateway.admin", text
    for i, pool in enumerate(spec.pools):
        for j, instance in enumerate(pool.instances):
            path, endpoint = f"pools[{i}].instances[{j}].url", _endpoint(instance.url)
            if not 1 <= endpoint[1] <= MAX_PORT:
                yield path, f"port {endpoint[1]} is not between 1 and {MAX_PORT}"
            for key, own in (("listen", listen), ("admin", admin)):
                if endpoint == own or (_clash(endpoint, own) and endpoint[0] in _LOOPBACK):
                    yield path, f"this is the gateway's own address (gateway.{key}); it would call itself"


def _clash(one: tuple[str, int], other: tuple[str, int]) -> bool:
    """Whether two listening addresses cannot both be bound. Port 0 takes any free port and never clashes."""
    if one[1] != other[1] or one[1] == 0:
        return False
    return one[0] == other[0] or one[0] in _EVERYWHERE or other[0] in _EVERYWHERE


def _gateway(gateway: GatewaySpec) -> Iterator[Finding]:
    timeouts, queue, body_bytes = gateway.timeouts, gateway.queue, gateway.limits.body_bytes
    for key, inner_s in (
        ("connect", timeouts.connect_s),
        ("first_token", timeouts.first_token_s),
        ("gap", timeouts.gap_s),
    ):
        if inner_s > timeouts.total_s:
            text = f"{write_duration(inner_s)} is longer than the whole request may take"
            yield (
                f"gateway.timeouts.{key}",
                f"{text} (total: {write_duration(timeouts.total_s)}); lower it or raise total",
            )
    if queue.max_requests and queue.max_bytes < body_bytes:
        text = f"{write_bytes(queue.max_bytes)} cannot hold one body of {write_bytes(body_bytes)} (gateway.limits.body)"
        yield "gateway.queue.max_bytes", f"{text}; raise it or lower limits.body"


def _tenants(tenants: list[TenantSpec]) -> Iterator[Finding]:
    yield from _repeated(((f"tenants[{i}].name", tenant.name) for i, tenant in enumerate(tenants)), "tenant name")
    keys = (
        (f"tenants[{i}].key_sha256[{j}]", key)
        for i, tenant in enumerate(tenants)
        for j, key in enumerate(tenant.key_sha256)
    )
    yield from _repeated(keys, "key")
    for i, tenant in enumerate(tenants):
        if not tenant.key_sha256:
            text = f"tenant {tenant.name!r} has no key, so no request can be its own; add one to key_sha256"
            yield f"tenants[{i}]", text


def _traffic(traffic: TrafficSpec) -> Iterator[Finding]:
    if traffic.trace is not None and traffic.phases:
        yield "traffic.trace", "a trace replaces the phases; delete one of the two"
    phases = traffic.phases
    yield from _repeated(((f"traffic.phases[{i}].name", phase.name) for i, phase in enumerate(phases)), "phase name")
    for i, phase in enumerate(phases):
        if phase.burstiness != 1 and phase.arrivals != "gamma":
            text = f"only gamma arrivals have a burstiness, not {phase.arrivals}; delete it or write arrivals: gamma"
            yield f"traffic.phases[{i}].burstiness", text
    yield from _volume(phases)


def _volume(phases: list[PhaseSpec]) -> Iterator[Finding]:
    planned = sum(phase.rate * phase.duration_s for phase in phases)
    if phases and planned == 0:
        yield "traffic.phases", "every rate is 0, so nothing would be sent; give one phase a rate"
    if planned > MAX_PLANNED_REQUESTS:
        text = f"the phases send about {planned:,.0f} requests, more than {MAX_PLANNED_REQUESTS:,}"
        yield "traffic.phases", f"{text}; lower rates or durations"


def _lengths(lengths: LengthSpec) -> Iterator[Finding]:
    path = "traffic.lengths"
    pairs = [
        ("prompt_min", lengths.prompt_min_tokens, "prompt_max", lengths.prompt_max_tokens),
        ("output_min", lengths.output_min_tokens, "output_max", lengths.output_max_tokens),
    ]
    if lengths.long_share > 0:
        pairs.append(("long_min", lengths.long_min_tokens, "long_max", lengths.long_max_tokens))
        if lengths.long_min_tokens < lengths.prompt_max_tokens:
            text = f"long prompts start at {lengths.long_min_tokens} tokens, below the longest ordinary prompt"
            mend = "raise long_min or lower prompt_max, so that a prompt's class is clear"
            yield f"{path}.long_min", f"{text} (prompt_max: {lengths.prompt_max_tokens}); {mend}"
    for low_key, low, high_key, high in pairs:
        if low > high:
            yield f"{path}.{low_key}", f"{low} is more than {high_key} ({high}); lower one or raise the other"


def _context(spec: ClusterSpec) -> Iterator[Finding]:
    lengths = spec.traffic.lengths
    long = lengths.long_share > 0 and lengths.long_max_tokens >= lengths.prompt_max_tokens
    prompt_key = "long_max" if long else "prompt_max"
    prompt = lengths.long_max_tokens if long else lengths.prompt_max_tokens
    needed = prompt + lengths.output_max_tokens
    for i, pool in enumerate(spec.pools):
        if needed > pool.engine.context_tokens:
            text = f"prompts of {prompt} tokens ({prompt_key}) and answers of {lengths.output_max_tokens} (output_max)"
            held = f"need {needed}, but pools[{i}].engine.context_tokens is {pool.engine.context_tokens}"
            yield f"traffic.lengths.{prompt_key}", f"{text} {held}; lower them or raise context_tokens"
