"""Clocks never go back, and a manual one stands exactly where it was put."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.clock import ManualClock, SystemClock


def test_system_clock_never_goes_back() -> None:
    clock = SystemClock()
    readings = [clock.now() for _ in range(100)]
    assert readings == sorted(readings)


def test_manual_clock_moves_only_when_told() -> None:
    clock = ManualClock(5.0)
    assert clock.now() == clock.now() == 5.0
    assert clock.advance(1.5) == 6.5
    assert clock.now() == 6.5


@given(st.floats(0, 1e9), st.floats(0, 1e9))
def test_manual_clock_stands_exactly_where_it_was_put(start_s: float, further_s: float) -> None:
    instant_s = start_s + further_s
    clock = ManualClock(start_s)
    assert clock.advance_to(instant_s) == instant_s
    assert clock.now() == instant_s


@pytest.mark.parametrize("step_s", [-1e-9, -math.inf, math.nan])
def test_manual_clock_refuses_to_go_back(step_s: float) -> None:
    clock = ManualClock(5.0)
    with pytest.raises(ValueError, match="cannot go back"):
        clock.advance(step_s)
    with pytest.raises(ValueError, match="cannot go back"):
        clock.advance_to(5.0 + step_s)
    assert clock.now() == 5.0
