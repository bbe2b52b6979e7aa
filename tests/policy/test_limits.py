"""Tenants' limits, as playbooks through the gate."""

from __future__ import annotations

from typing import Any

import pytest

from tidegate.errors import Outcome
from tidegate.policy.gate import Gate
from tidegate.policy.ticket import Attempt, Command, Head, Refuse, Usage
from tidegate.spec import BudgetSpec, ModelBudgetSpec, TenantSpec
from tidegate.testing.playbook import at_rest, attempt_of, gate, refusal_of


def _tenant(model_limits: dict[str, Any] | None = None, **limits: Any) -> TenantSpec:
    part = [ModelBudgetSpec(model="m", limits=BudgetSpec(**model_limits))] if model_limits else []
    return TenantSpec(name="shop", key_sha256=["0" * 64], limits=BudgetSpec(**limits), model_limits=part)


def _ask(g: Gate, now: float, prompt: int = 100, answer: int = 50) -> list[Command]:
    return g.open(Head("m", "shop", prompt_tokens=prompt, max_tokens=answer), now)


def _passed(g: Gate, now: float, times: int) -> int:
    return sum(isinstance(_ask(g, now)[0], Attempt) for _ in range(times))


@pytest.mark.parametrize(
    ("limits", "code", "passes"),
    [
        ({"requests": 3}, "limit_requests", 3),
        ({"input_tokens": 250}, "limit_input_tokens", 2),
        ({"output_tokens": 120}, "limit_output_tokens", 2),
    ],
)
def test_a_used_up_budget_is_refused_says_which_and_is_not_worth_retrying(
    limits: dict[str, Any], code: str, passes: int
) -> None:
    g = gate(tenants=[_tenant(**limits)])
    assert _passed(g, 1.0, passes) == passes
    refusal = refusal_of(_ask(g, 1.0)).refusal
    assert (refusal.outcome, refusal.status, refusal.code, refusal.retryable) == (Outcome.LIMITED, 429, code, False)
    assert refusal.retry_after_s is not None
    assert isinstance(_ask(g, 1.0 + refusal.retry_after_s)[0], Attempt), "the time it named is enough"


def test_too_many_at_once_is_worth_retrying_and_frees_with_the_first_that_ends() -> None:
    g = gate(tenants=[_tenant(concurrent=2)])
    first = attempt_of(_ask(g, 1.0))
    _ask(g, 1.0)
    assert refusal_of(_ask(g, 1.0)).refusal.retryable
    g.finished(first, None, 2.0)
    assert isinstance(_ask(g, 2.0)[0], Attempt)


def test_a_request_larger_than_its_budget_is_refused_for_good() -> None:
    g = gate(tenants=[_tenant(input_tokens=1000)])
    refusal = refusal_of(_ask(g, 1.0, prompt=5000)).refusal
    assert refusal.retryable is False
    assert refusal.retry_after_s is None


def test_what_was_used_counts_and_not_what_was_guessed() -> None:
    g = gate(tenants=[_tenant(output_tokens=100)])
    attempt = attempt_of(_ask(g, 1.0, answer=100))
    assert isinstance(_ask(g, 1.0, answer=50)[0], Refuse), "all of it is reserved"
    g.first_token(attempt, 1.1)
    g.finished(attempt, Usage(100, 10), 1.2)
    assert isinstance(_ask(g, 1.2, answer=50)[0], Attempt), "90 of 100 came back"


@pytest.mark.parametrize("end", ["client leaves while queued", "client leaves before a token", "engine refuses"])
def test_what_no_engine_answered_costs_nothing(end: str) -> None:
    g = gate(1, tenants=[_tenant(requests=2, input_tokens=200)], admission={"max_in_flight": 1})
    attempt = attempt_of(_ask(g, 1.0))
    if end == "client leaves while queued":
        queued = _ask(g, 1.0)[0].ticket
        g.client_gone(queued, 1.1)
        g.finished(attempt, Usage(100, 10), 1.2)
    elif end == "client leaves before a token":
        g.client_gone(attempt.ticket, 1.1)
        attempt = attempt_of(_ask(g, 1.2))
        g.finished(attempt, Usage(100, 10), 1.3)
    else:
        g.answered_badly(attempt, 400, None, 1.1)
        attempt = attempt_of(_ask(g, 1.2))
        g.finished(attempt, Usage(100, 10), 1.3)
    assert isinstance(_ask(g, 2.0)[0], Attempt), "one request of two is still free"
    assert isinstance(_ask(g, 2.0)[0], Refuse)


def test_a_broken_stream_costs_its_prompt_and_what_was_delivered() -> None:
    g = gate(tenants=[_tenant(output_tokens=100)])
    attempt = attempt_of(_ask(g, 1.0, answer=100))
    g.first_token(attempt, 1.1)
    attempt.tokens = 30
    g.broke(attempt, "reset", 1.5)
    assert isinstance(_ask(g, 1.5, answer=75)[0], Refuse)
    assert isinstance(_ask(g, 1.5, answer=70)[0], Attempt)


def test_a_models_limit_holds_on_top_of_the_tenants() -> None:
    g = gate(tenants=[_tenant({"requests": 1}, requests=10)])
    assert _passed(g, 1.0, 5) == 1


def test_other_tenants_are_not_limited() -> None:
    g = gate(tenants=[_tenant(requests=1), TenantSpec(name="other", key_sha256=["1" * 64])])
    for _ in range(20):
        attempt_of(g.open(Head("m", "other", prompt_tokens=10), 1.0))


def test_limits_change_without_forgetting_what_was_spent() -> None:
    g = gate(tenants=[_tenant(requests=4)])
    assert _passed(g, 1.0, 4) == 4
    g.limits.renew([_tenant(requests=6)], 1.0)
    assert _passed(g, 1.0, 6) == 2


def test_refusals_leave_nothing_held() -> None:
    g = gate(tenants=[_tenant(requests=1)])
    attempt = attempt_of(_ask(g, 1.0))
    for _ in range(10):
        _ask(g, 1.0)
    g.finished(attempt, None, 1.5)
    assert at_rest(g)
    (account,) = g.limits.accounts("shop", "m")
    assert account.open == 0
