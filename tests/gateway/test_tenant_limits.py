"""Tenants' limits as a client meets them, and their renewal under way."""

from __future__ import annotations

import hashlib
import json
import signal
from pathlib import Path

from tidegate.spec import BudgetSpec, TenantSpec
from tidegate.testing.house import House, spec_of
from tidegate.testing.live import wait_until
from tidegate.testing.memory_transport import MemoryClient
from tidegate.testing.processes import Emulated, Gateway

ANSWER = b'{"choices":[{"message":{"content":"hi"}}],"usage":{"prompt_tokens":7,"completion_tokens":2}}'


def _tenant(key: str, **limits: int) -> TenantSpec:
    return TenantSpec(name="shop", key_sha256=[hashlib.sha256(key.encode()).hexdigest()], limits=BudgetSpec(**limits))


def _ask(house: House, key: bytes = b"secret") -> MemoryClient:
    client = house.ask(headers=b"authorization: Bearer " + key + b"\r\n")
    if house.asked and not house.asked[-1].cancelled:
        house.asked[-1].answer(ANSWER)
        house.wire.pump()
    return client


def _head(client: MemoryClient) -> dict[str, str]:
    head = client.received.partition(b"\r\n\r\n")[0].decode().split("\r\n")
    return {"status": head[0].split()[1], **dict(line.split(": ", 1) for line in head[1:])}


def test_every_answer_says_how_the_limits_stand() -> None:
    house = House(spec_of(tenants=[_tenant("secret", requests=10, input_tokens=1000, output_tokens=5000)]))
    head = _head(_ask(house))
    assert (head["x-ratelimit-limit-requests"], head["x-ratelimit-remaining-requests"]) == ("10", "9")
    assert head["x-ratelimit-limit-tokens"] == "1000"
    assert 0 < int(head["x-ratelimit-remaining-tokens"]) < 1000
    assert head["x-ratelimit-reset-requests"] == "6s"


def test_a_used_up_budget_is_a_429_that_names_it_and_is_not_to_be_retried() -> None:
    house = House(spec_of(tenants=[_tenant("secret", requests=2)]))
    statuses = [_head(_ask(house))["status"] for _ in range(2)]
    refused = _ask(house)
    head, body = _head(refused), json.loads(refused.received.partition(b"\r\n\r\n")[2])
    assert [*statuses, head["status"]] == ["200", "200", "429"]
    assert head["x-ratelimit-remaining-requests"] == "0"
    assert (head["x-should-retry"], head["x-tidegate-reason"]) == ("false", "limit_requests")
    assert 0 < int(head["retry-after"]) <= 30
    assert body["error"]["type"] == "rate_limit_error"
    assert len(house.asked) == 2, "the engine never saw the third"


def test_a_cluster_without_limits_says_nothing_of_them(house: House) -> None:
    assert not [name for name in _head(_ask(house)) if name.startswith("x-ratelimit")]


def test_new_keys_and_limits_hold_at_once_and_nothing_spent_is_forgotten() -> None:
    house = House(spec_of(tenants=[_tenant("secret", requests=3)]))
    for _ in range(3):
        _ask(house)
    house.gateway.renew_tenants([_tenant("renewed", requests=4)])
    assert _head(_ask(house, b"secret"))["status"] == "401"
    assert [_head(_ask(house, b"renewed"))["status"] for _ in range(2)] == ["200", "429"]


def test_a_running_gateway_reloads_its_document_and_survives_a_wrong_one(tmp_path: Path) -> None:
    def tenants(key: str) -> list[dict[str, object]]:
        return [{"name": "shop", "key_sha256": [hashlib.sha256(key.encode()).hexdigest()]}]

    def status(gateway: Gateway, key: str) -> int:
        body = {"model": "tide-8b", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
        return gateway.post("/v1/chat/completions", body, {"authorization": f"Bearer {key}"})[0]

    with (
        Emulated(tmp_path / "engine.log") as engine,
        Gateway(tmp_path, [engine.url], tenants=tenants("old")) as gateway,
    ):
        assert (status(gateway, "old"), status(gateway, "new")) == (200, 401)
        document = json.loads(gateway.config.read_text())
        gateway.config.write_text("pools: [")
        gateway.signal(signal.SIGHUP)
        wait_until("the refusal", lambda: "reload refused" in gateway.output())
        assert status(gateway, "old") == 200
        gateway.config.write_text(json.dumps({**document, "tenants": tenants("new")}))
        gateway.signal(signal.SIGHUP)
        wait_until("the new tenants", lambda: "reloaded: 1 tenants" in gateway.output())
        assert (status(gateway, "old"), status(gateway, "new")) == (401, 200)
