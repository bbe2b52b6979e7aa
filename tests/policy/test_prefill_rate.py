"""The prefill rate follows the engine and nothing else."""

from __future__ import annotations

import pytest

from tidegate.policy.pace import PrefillRate


def _crowded(rate: PrefillRate, start_s: float, per_s: float, prompts: int, tokens: int = 800) -> float:
    """An engine with a standing queue of prompts that prefills `per_s` tokens a second."""
    now = start_s
    rate.began(now, 0)
    for _ in range(prompts):
        now += tokens / per_s
        rate.done(tokens, now, 5000)
    return now


def test_under_load_it_is_the_engines_rate() -> None:
    rate = PrefillRate()
    _crowded(rate, 0.0, 17_000, 40)
    assert rate.per_s == pytest.approx(17_000, rel=0.01)


def test_a_node_that_becomes_slow_shows_within_seconds() -> None:
    rate = PrefillRate()
    now = _crowded(rate, 0.0, 17_000, 40)
    _crowded(rate, now, 4_000, 20)
    assert rate.per_s == pytest.approx(4_000, rel=0.15)


def test_lone_short_prompts_do_not_make_an_engine_look_slow() -> None:
    rate = PrefillRate()
    now = _crowded(rate, 0.0, 17_000, 40)
    for _ in range(200):
        now += 1.0
        rate.began(now, 0)
        rate.done(100, now + 0.03, 0)
    assert rate.per_s == pytest.approx(17_000, rel=0.01)


def test_a_lone_long_prompt_shows_at_least_its_own_rate() -> None:
    rate = PrefillRate()
    rate.began(0.0, 0)
    rate.done(6000, 0.4, 0)
    assert rate.per_s == pytest.approx(15_000)


def test_until_something_was_seen_it_is_unknown() -> None:
    rate = PrefillRate()
    rate.began(0.0, 0)
    rate.done(100, 0.03, 0)
    assert rate.per_s == 0.0


def test_time_spent_on_prompts_that_went_away_is_not_held_against_the_engine() -> None:
    rate = PrefillRate()
    now = _crowded(rate, 0.0, 17_000, 40)
    for _ in range(20):
        rate.began(now, 0)
        now += 5.0
        rate.left(now)
    _crowded(rate, now, 17_000, 10)
    assert rate.per_s == pytest.approx(17_000, rel=0.01)
