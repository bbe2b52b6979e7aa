"""A rate budget spends, refuses, settles and fills again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.policy.budget import Budget


def test_a_full_bucket_takes_its_burst_and_not_one_more() -> None:
    budget = Budget(60, 10)
    for _ in range(10):
        assert budget.wait_s(1, 5.0) == 0
        budget.spend(1, 5.0)
    assert budget.wait_s(1, 5.0) == pytest.approx(1.0)
    assert budget.wait_s(1, 6.0) == pytest.approx(0.0)


def test_five_at_once_cannot_pass_a_budget_of_100_tokens() -> None:
    """BerriAI/litellm#18730: 5 concurrent requests of 58 to 175 tokens passed 663 tokens through 100 a minute."""
    budget = Budget(100, 100)
    passed = 0
    for tokens in (58, 90, 165, 175, 175):
        if budget.wait_s(tokens, 0.0) == 0:
            budget.spend(tokens, 0.0)
            passed += tokens
    assert passed <= 100


def test_a_low_estimate_becomes_debt_that_later_requests_wait_out() -> None:
    budget = Budget(600, 100)
    budget.spend(50, 0.0)
    budget.settle(50, 250)
    assert budget.remaining(0.0) == 0
    assert budget.wait_s(1, 0.0) == pytest.approx((250 - 100 + 1) / 10)


def test_an_aborted_request_gives_its_reservation_back() -> None:
    budget = Budget(600, 100)
    budget.spend(80, 0.0)
    budget.settle(80, 0)
    assert budget.remaining(0.0) == 100


def test_more_than_the_bucket_holds_is_never_possible() -> None:
    assert Budget(600, 100).wait_s(101, 0.0) == -1


def test_resizing_keeps_what_was_spent() -> None:
    budget = Budget(600, 100)
    budget.spend(60, 0.0)
    budget.resize(1200, 200, 0.0)
    assert budget.remaining(0.0) == 140


@given(
    st.lists(
        st.tuples(st.floats(0, 20), st.integers(1, 60), st.integers(0, 120), st.booleans()), min_size=1, max_size=80
    )
)
def test_no_minute_passes_more_than_rate_and_burst_and_one_error(steps: list[tuple[float, int, int, bool]]) -> None:
    budget, now = Budget(120, 60), 0.0
    passed: list[tuple[float, int]] = []
    worst_error = 0
    for gap_s, estimate, used, aborted in steps:
        now += gap_s
        if budget.wait_s(estimate, now) > 0:
            continue
        budget.spend(estimate, now)
        actual = 0 if aborted else used
        worst_error = max(worst_error, actual - estimate)
        budget.settle(estimate, actual)
        passed.append((now, actual))
    for start_s, _ in passed:
        inside = sum(tokens for at_s, tokens in passed if start_s <= at_s < start_s + 60)
        assert inside <= 120 + 60 + worst_error + 1e-6
