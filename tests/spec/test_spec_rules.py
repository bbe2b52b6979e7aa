"""Rules that span fields: each is broken once, and the sentence names place, numbers and the way out."""

from __future__ import annotations

import pytest

from tidegate.spec import SpecError, parse_spec

ONE = "pools:\n  - {model: m, instances: [{url: 'http://a:1'}]}\n"
KEY = "0123456789abcdef" * 4


def broken(text: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        parse_spec(text, "t.yaml")
    return caught.value.message.splitlines()


def engine(settings: str, more: str = "") -> str:
    return f"pools:\n  - model: m\n    instances: [{{url: 'http://a:1'}}]\n    engine: {{{settings}}}\n{more}"


CASES = {
    "model twice": (
        ONE + "  - {model: m, instances: [{url: 'http://b:1'}]}",
        "t.yaml:3: pools[1].model: model 'm' is taken by pools[0].model; give each its own",
    ),
    "instance name twice": (
        "pools: [{model: m, instances: [{url: 'http://a:1', name: x}, {url: 'http://b:1', name: x}]}]",
        "pools[0].instances[1].name: instance name 'x' is taken by pools[0].instances[0].name",
    ),
    "address twice, in two pools": (
        ONE + "  - {model: n, instances: [{url: 'http://A:1/', name: other}]}",
        "t.yaml:3: pools[1].instances[0].url: address a:1 is taken by pools[0].instances[0].url",
    ),
    "port written and implied": (
        "pools: [{model: m, instances: [{url: 'http://a'}, {url: 'http://a:80'}]}]",
        "pools[0].instances[1].url: address a:80 is taken",
    ),
    "instance port": (
        "pools: [{model: m, instances: [{url: 'http://a:70000'}]}]",
        "pools[0].instances[0].url: port 70000 is not between 1 and 65535",
    ),
    "listen port": (ONE + "gateway: {listen: 'a:65536'}", "t.yaml:3: gateway.listen: port 65536 is above 65535"),
    "admin on the same address": (
        ONE + "gateway:\n  listen: 127.0.0.1:80\n  admin: 127.0.0.1:80",
        "t.yaml:5: gateway.admin: 127.0.0.1:80 clashes with gateway.listen (127.0.0.1:80)",
    ),
    "admin under a wildcard": (
        ONE + "gateway: {listen: '0.0.0.0:9080'}",
        "gateway.admin: 127.0.0.1:9080 clashes with gateway.listen (0.0.0.0:9080)",
    ),
    "gateway in front of itself": (
        "pools: [{model: m, instances: [{url: 'http://127.0.0.1:8080'}]}]",
        "pools[0].instances[0].url: this is the gateway's own address (gateway.listen)",
    ),
    "gateway in front of itself by wildcard": (
        "pools: [{model: m, instances: [{url: 'http://localhost:8000'}]}]\ngateway: {listen: '0.0.0.0:8000'}",
        "this is the gateway's own address (gateway.listen)",
    ),
    "tenant name twice": (
        ONE + f"tenants:\n  - {{name: a, key_sha256: ['{KEY}']}}\n  - {{name: a, key_sha256: ['{KEY[::-1]}']}}",
        "t.yaml:5: tenants[1].name: tenant name 'a' is taken by tenants[0].name",
    ),
    "key twice": (
        ONE + f"tenants:\n  - {{name: a, key_sha256: ['{KEY}']}}\n  - {{name: b, key_sha256: ['{KEY}']}}",
        "t.yaml:5: tenants[1].key_sha256[0]: key",
    ),
    "tenant nobody can be": (ONE + "tenants: [{name: a}]", "tenants[0]: tenant 'a' has no key"),
    "phase name twice": (
        ONE + "traffic:\n  phases:\n    - {name: p, duration: 1s, rate: 1}\n    - {name: p, duration: 1s, rate: 1}",
        "t.yaml:6: traffic.phases[1].name: phase name 'p' is taken by traffic.phases[0].name",
    ),
    "trace and phases": (
        ONE + "traffic: {phases: [{name: p, duration: 1s, rate: 1}], trace: {file: f, format: azure}}",
        "traffic.trace: a trace replaces the phases; delete one of the two",
    ),
    "burstiness without gamma": (
        ONE + "traffic: {phases: [{name: p, duration: 1s, rate: 1, burstiness: 3}]}",
        "traffic.phases[0].burstiness: only gamma arrivals have a burstiness, not poisson",
    ),
    "nothing to send": (
        ONE + "traffic: {phases: [{name: p, duration: 1s, rate: 0}]}",
        "traffic.phases: every rate is 0",
    ),
    "more than a run can hold": (
        ONE + "traffic: {phases: [{name: p, duration: 1d, rate: 10k}]}",
        "traffic.phases: the phases send about 864,000,000 requests, more than 50,000,000",
    ),
    "prompt bounds": (
        ONE + "traffic: {lengths: {prompt_min: 100, prompt_max: 50}}",
        "traffic.lengths.prompt_min: 100 is more than prompt_max (50)",
    ),
    "output bounds": (
        ONE + "traffic: {lengths: {output_min: 600}}",
        "traffic.lengths.output_min: 600 is more than output_max (512)",
    ),
    "long bounds": (
        ONE + "traffic: {lengths: {long_min: 9000}}",
        "traffic.lengths.long_min: 9000 is more than long_max (8192)",
    ),
    "long that is not": (
        ONE + "traffic: {lengths: {long_min: 1000}}",
        "traffic.lengths.long_min: long prompts start at 1000 tokens, below the longest ordinary",
    ),
    "lengths over the context": (
        engine("context_tokens: 8192", "traffic:\n  phases: [{name: p, duration: 1s, rate: 1}]"),
        "answers of 512 (output_max) need 8704, but pools[0].engine.context_tokens is 8192; lower them",
    ),
    "ordinary lengths over the context": (
        engine(
            "context_tokens: 4ki",
            "traffic: {lengths: {long_share: 0}, phases: [{name: p, duration: 1s, rate: 1}]}",
        ),
        "traffic.lengths.prompt_max: prompts of 4096 tokens (prompt_max) and answers of 512 (output_max) need 4608",
    ),
    "step below a block": (
        engine("step_tokens: 8, max_sequences: 4"),
        "t.yaml:4: pools[0].engine.step_tokens: a step of 8 tokens cannot fill one block of 16",
    ),
    "context below a block": (
        engine("context_tokens: 8"),
        "pools[0].engine.context_tokens: 8 tokens are less than one block of 16",
    ),
    "more sequences than a step has tokens": (
        engine("step_tokens: 512"),
        "pools[0].engine.max_sequences: 1024 sequences need a token each per step, but step_tokens is 512",
    ),
    "fp8 weights on A100": (
        engine("hardware: a100_sxm, kv_cache: bf16"),
        "pools[0].engine.weights: a100_sxm has no fp8; write weights: bf16",
    ),
    "fp8 KV on A100": (
        engine("hardware: a100_sxm, weights: bf16"),
        "pools[0].engine.kv_cache: a100_sxm has no fp8; write kv_cache: bf16",
    ),
    "patience in pieces longer than in whole": (
        ONE + "gateway: {timeouts: {first_token: 2h}}",
        "gateway.timeouts.first_token: 2h is longer than the whole request may take (total: 30m)",
    ),
    "queue too small for one body": (
        ONE + "gateway:\n  queue: {max_bytes: 1MiB}",
        "t.yaml:4: gateway.queue.max_bytes: 1MiB cannot hold one body of 16MiB (gateway.limits.body)",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_rule_names_place_and_way_out(case: str) -> None:
    text, said = CASES[case]
    found = broken(text)
    assert len(found) == 1, found
    assert said in found[0]


@pytest.mark.parametrize(
    "text",
    [
        ONE + "gateway: {listen: '127.0.0.1:0', admin: '127.0.0.1:0'}",
        ONE + "gateway: {listen: '[::1]:80', admin: '127.0.0.1:80'}",
        ONE + "gateway: {queue: {max_requests: 0, max_bytes: 0}}",
        ONE + "traffic: {lengths: {long_share: 0, long_min: 1, long_max: 1}}",
        engine("step_tokens: 512", "").replace("step_tokens", "kind: sglang, step_tokens"),
        engine("context_tokens: 1024"),
        engine("hardware: a100_sxm, weights: bf16, kv_cache: bf16"),
    ],
)
def test_sound_settings_near_a_rule_pass(text: str) -> None:
    parse_spec(text)


def test_all_broken_rules_are_told_at_once() -> None:
    found = broken(ONE + "  - {model: m, instances: [{url: 'http://a:1'}]}\ntenants: [{name: a}]")
    assert len(found) == 4
