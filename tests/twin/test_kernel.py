"""The virtual clock takes events in one order only."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.twin.kernel import ARRIVAL, BEGIN, STEP_END, TICK, Kernel


def test_events_of_one_moment_go_by_kind_then_by_push() -> None:
    kernel = Kernel()
    for kind, name in ((BEGIN, "begin"), (ARRIVAL, "first"), (TICK, "tick"), (ARRIVAL, "second"), (STEP_END, "end")):
        kernel.push(1.0, kind, name)
    kernel.push(0.5, BEGIN, "earlier")
    assert [kernel.pop()[3] for _ in range(6)] == ["earlier", "end", "first", "second", "tick", "begin"]


def test_the_past_is_closed() -> None:
    kernel = Kernel()
    kernel.push(2.0, TICK, None)
    kernel.pop()
    with pytest.raises(ValueError, match="before the present"):
        kernel.push(1.9, TICK, None)


@given(st.lists(st.tuples(st.floats(0, 10), st.integers(0, 5)), max_size=40))
def test_time_never_goes_back(events: list[tuple[float, int]]) -> None:
    kernel = Kernel()
    for at_s, kind in events:
        kernel.push(at_s, kind, None)
    taken = [kernel.pop()[:2] for _ in range(len(events))]
    assert taken == sorted(events)
