"""The waiting line: fair between tenants, urgent first, long prompts apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.policy.line import WaitingLine
from tidegate.policy.ticket import CLOSED, QUEUED, SENT, Head, Ticket
from tidegate.spec import QueueSpec


def _ticket(number: int, tenant: str = "a", tokens: int = 100, deadline_s: float = 9.0, priority: int = 2) -> Ticket:
    ticket = Ticket(number, Head("m", tenant, priority=priority, body_bytes=tokens), 0.0)
    ticket.prompt_tokens, ticket.long, ticket.deadline_s = tokens, tokens > 4096, deadline_s
    ticket.charged_tokens = 0
    ticket.move(QUEUED)
    return ticket


def _admit_next(line: WaitingLine) -> Ticket:
    """Admits the first head, as the gate does with room for one."""
    ticket = line.heads()[0]
    line.left(ticket)
    ticket.move(SENT)
    line.admitted(ticket)
    return ticket


def _line(weights: dict[str, float] | None = None, long_share: float = 0.5) -> WaitingLine:
    return WaitingLine(QueueSpec(max_requests=100_000), weights or {}, long_share)


@pytest.mark.parametrize(("weight", "expected"), [(1.0, 0.5), (3.0, 0.75)])
def test_tokens_are_shared_by_weight_however_many_wait(weight: float, expected: float) -> None:
    line = _line({"a": weight})
    for n in range(4000):
        line.push(_ticket(n, tenant="a" if n % 8 == 0 else "flood", tokens=100 + n % 50))
    served = {"a": 0, "flood": 0}
    for _ in range(400):
        ticket = _admit_next(line)
        served[ticket.head.tenant] += ticket.prompt_tokens
    assert served["a"] / sum(served.values()) == pytest.approx(expected, abs=0.02)


def test_a_tenant_that_comes_late_has_no_savings() -> None:
    line = _line()
    for n in range(100):
        line.push(_ticket(n, tenant="early"))
    for _ in range(50):
        _admit_next(line)
    for n in range(100, 200):
        line.push(_ticket(n, tenant="late"))
    names = [_admit_next(line).head.tenant for _ in range(20)]
    assert 9 <= names.count("late") <= 11


def test_a_charge_corrected_downwards_brings_the_turn_back() -> None:
    line = _line()
    for n in range(10):
        line.push(_ticket(n, tenant="a" if n % 2 else "b"))
    first = _admit_next(line).head.tenant
    line.charge(first, -100, 0)
    assert _admit_next(line).head.tenant == first


def test_inside_a_tenant_the_earliest_deadline_is_next() -> None:
    line = _line()
    for n, deadline_s in enumerate([5.0, 3.0, 4.0]):
        line.push(_ticket(n, deadline_s=deadline_s))
    assert [_admit_next(line).deadline_s for _ in range(3)] == [3.0, 4.0, 5.0]


def test_a_long_prompt_at_the_head_does_not_hide_the_short_ones() -> None:
    line = _line()
    line.push(_ticket(1, tokens=8000))
    line.push(_ticket(2, tokens=100))
    assert [t.id for t in line.heads()] == [2, 1]


@pytest.mark.parametrize("share", [0.25, 0.5])
def test_lanes_take_turns_by_tokens_while_both_wait(share: float) -> None:
    line = _line(long_share=share)
    for n in range(4000):
        line.push(_ticket(n, tokens=6000 if n % 4 == 0 else 500))
    tokens = {True: 0, False: 0}
    for _ in range(600):
        ticket = _admit_next(line)
        tokens[ticket.long] += ticket.prompt_tokens
    assert tokens[True] / sum(tokens.values()) == pytest.approx(share, abs=0.03)


def test_only_what_stands_before_it_counts_against_a_newcomer() -> None:
    line = _line()
    for n in range(50):
        line.push(_ticket(n, tenant="flood", tokens=1000))
    assert line.tokens_before(_ticket(99, tenant="flood", tokens=100)) == 50_000
    assert line.tokens_before(_ticket(99, tenant="quiet", tokens=100)) == 50


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 9000), st.integers(0, 3), st.floats(0, 9)), max_size=60),
    st.data(),
)
def test_counts_never_drift_whoever_leaves_how(pushed: list[tuple[str, int, int, float]], data: st.DataObject) -> None:
    line, waiting = _line(), []
    for n, (tenant, tokens, priority, deadline_s) in enumerate(pushed):
        ticket = _ticket(n, tenant, tokens, deadline_s, priority)
        line.push(ticket)
        waiting.append(ticket)
    while waiting:
        if data.draw(st.booleans()):
            gone = line.heads()[0]
        else:
            gone = data.draw(st.sampled_from(waiting))
        line.left(gone)
        gone.move(CLOSED)
        waiting.remove(gone)
        assert line.count == len(waiting)
        assert line.bytes == sum(t.head.body_bytes for t in waiting)
        assert {t.id for t in line.everyone()} == {t.id for t in waiting}
        assert bool(line.heads()) == bool(waiting)
    assert line.expired(1e9) == []


@given(st.lists(st.floats(0, 9), max_size=40), st.floats(0, 10))
def test_whoever_is_past_its_deadline_is_found_once(deadlines: list[float], now: float) -> None:
    line = _line()
    for n, deadline_s in enumerate(deadlines):
        line.push(_ticket(n, deadline_s=deadline_s))
    found = line.expired(now)
    assert sorted(t.deadline_s for t in found) == sorted(d for d in deadlines if d <= now)
    assert line.expired(now) == []
