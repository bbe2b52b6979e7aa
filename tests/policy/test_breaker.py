"""The fault breaker, as playbooks through the gate and as a machine of its own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.policy import breaker as states
from tidegate.policy.breaker import Breaker
from tidegate.policy.gate import Gate
from tidegate.policy.ticket import Attempt
from tidegate.spec import BreakerSpec
from tidegate.testing.playbook import at_rest, attempt_of, gate, head


def _fail(g: Gate, now: float, name: str, how: str = "500") -> None:
    """Sends until a request lands on `name`, and has the instance fail it; the others answer well."""
    for _ in range(20):
        attempt = attempt_of(g.open(head(), now))
        if attempt.instance.name == name:
            break
        _answer(g, attempt, now)
    assert attempt.instance.name == name
    commands = g.answered_badly(attempt, 500, None, now) if how == "500" else g.broke(attempt, how, now)
    for command in commands:
        if isinstance(command, Attempt):
            _answer(g, command, now)


def _answer(g: Gate, attempt: Attempt, now: float) -> None:
    g.first_token(attempt, now)
    g.finished(attempt, None, now)


def _names(g: Gate, now: float, count: int) -> set[str]:
    found = set()
    for _ in range(count):
        attempt = attempt_of(g.open(head(), now))
        found.add(attempt.instance.name)
        _answer(g, attempt, now)
    return found


def _broken(how: str = "500", instances: int = 3) -> Gate:
    g = gate(instances, breaker={"min_requests": 5}, retry={"budget": 1.0})
    for n in range(5):
        _fail(g, 1.0 + 0.1 * n, "i1", how)
    return g


@pytest.mark.parametrize("how", ["500", "reset", "garbage"])
def test_an_instance_that_fails_is_taken_out(how: str) -> None:
    assert _names(_broken(how), 2.0, 12) == {"i2", "i3"}


@pytest.mark.parametrize("status", [400, 404, 422, 429, 503])
def test_refusals_of_the_engine_are_no_failures(status: int) -> None:
    g = gate(3, breaker={"min_requests": 5}, retry={"budget": 0.0})
    for n in range(60):
        g.answered_badly(attempt_of(g.open(head(), 0.1 * n)), status, None, 0.1 * n)
    assert _names(g, 6.0, 12) == {"i1", "i2", "i3"}


def test_after_the_cool_off_exactly_one_request_tries_it() -> None:
    g = _broken()
    first = [attempt_of(g.open(head(), 7.0)) for _ in range(9)]
    assert [a.instance.name for a in first].count("i1") == 1
    trial = next(a for a in first if a.instance.name == "i1")
    g.first_token(trial, 7.2)
    assert "i1" in _names(g, 7.3, 9)


def test_a_failed_trial_rests_twice_as_long() -> None:
    g = _broken()
    _fail(g, 7.0, "i1")
    assert _names(g, 16.9, 12) == {"i2", "i3"}, "ten seconds after the trial, not five"
    assert "i1" in _names(g, 17.1, 12)


def test_a_trial_whose_client_left_frees_the_place_for_another() -> None:
    g = _broken()
    attempts = [attempt_of(g.open(head(), 7.0)) for _ in range(6)]
    trial = next(a for a in attempts if a.instance.name == "i1")
    g.client_gone(trial.ticket, 7.1)
    again = [attempt_of(g.open(head(), 7.2)) for _ in range(6)]
    assert [a.instance.name for a in again].count("i1") == 1


def test_the_last_instance_is_never_taken_out_by_rate() -> None:
    g = gate(1, breaker={"min_requests": 5})
    for n in range(30):
        g.broke(attempt_of(g.open(head(), 0.1 * n)), "reset", 0.1 * n)
    attempt_of(g.open(head(), 4.0))


def test_no_more_than_the_cap_is_out_at_once() -> None:
    g = gate(4, breaker={"min_requests": 5, "max_ejected": 0.5}, retry={"budget": 0.0})
    for n in range(200):
        g.broke(attempt_of(g.open(head(), 1.0 + 0.02 * n)), "reset", 1.0 + 0.02 * n)
    assert sum(i.breaker.state != states.CLOSED for i in g.instances) == 2
    attempt_of(g.open(head(), 5.0))


def test_who_waits_is_served_when_a_cool_off_ends() -> None:
    g = gate(2, admission={"max_in_flight": 1}, queue={"max_wait_s": 30.0}, breaker={"min_requests": 5})
    busy = None
    for n in range(12):
        attempt = attempt_of(g.open(head(), 1.0 + 0.1 * n))
        if attempt.instance.name == "i1":
            for again in g.broke(attempt, "reset", 1.0 + 0.1 * n):
                if isinstance(again, Attempt):
                    _answer(g, again, 1.0 + 0.1 * n)
        else:
            _answer(g, attempt, 1.0 + 0.1 * n)
    busy = attempt_of(g.open(head(), 3.0))
    assert busy.instance.name == "i2"
    g.open(head(), 3.1)
    assert g.tick(4.0) == []
    assert attempt_of(g.tick(9.0)).instance.name == "i1"


def test_old_failures_are_forgotten() -> None:
    g = gate(3, breaker={"min_requests": 5, "window_s": 10.0}, retry={"budget": 1.0})
    for n in range(20):
        _fail(g, 12.0 * n, "i1")
    assert "i1" in _names(g, 250.0, 9)
    assert at_rest(g)


@given(
    st.lists(
        st.tuples(st.sampled_from(["send", "good", "bad", "gone"]), st.floats(0, 4), st.integers(0, 5)), max_size=80
    )
)
def test_there_is_never_more_than_one_trial_and_always_a_way_back(steps: list[tuple[str, float, int]]) -> None:
    breaker, now = Breaker(BreakerSpec(min_requests=3)), 0.0
    flying: list[bool] = []
    for what, gap_s, which in steps:
        now += gap_s
        if what == "send":
            if breaker.allows(now):
                flying.append(breaker.sent())
        elif flying:
            trial = flying.pop(which % len(flying))
            if what == "good":
                breaker.good(trial, now)
            elif what == "bad":
                breaker.bad(trial, now)
                if breaker.failing(now):
                    breaker.open(now)
            else:
                breaker.undecided(trial, now)
        assert sum(flying) <= 1
        assert (breaker.state == states.TRYING) == any(flying)
    if not any(flying):
        assert breaker.allows(now + 1000.0)
