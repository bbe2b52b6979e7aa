"""What the console keeps and tells, without a browser: history, events, rows, viewers."""

from __future__ import annotations

import json
import random
import tracemalloc
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection, HTTPResponse
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.console.events import KEPT, Spell
from tidegate.console.history import COLUMNS, POINTS, quantile
from tidegate.console.live import MAX_VIEWERS
from tidegate.errors import Outcome
from tidegate.observe.buckets import BOUNDS_S, Buckets
from tidegate.testing.live import HOST
from tidegate.testing.processes import request
from tidegate.testing.stage import Served, Stage


def told(stage: Stage) -> list[str]:
    """Kinds of the events, oldest first."""
    return [event.kind for event in stage.console.state()["events"]]


def now(stage: Stage) -> dict[str, float | None]:
    """The history's newest point."""
    columns: dict[str, list[float | None]] = stage.console._history.columns()
    return {name: column[-1] for name, column in columns.items()}


# --- history ---


def test_a_second_of_traffic_is_a_point(stage: Stage) -> None:
    stage.ready(lambda number: number / 10)
    stage.pass_second()
    stage.serve(8, ttft_s=0.7)
    stage.serve(2, ttft_s=0.9)
    stage.serve(5, outcome=Outcome.OVERLOADED)
    stage.serve(3, outcome=Outcome.LIMITED)
    stage.serve(1, outcome=Outcome.ENGINE_ERROR)
    stage.pass_second()
    point = now(stage)
    assert [point[name] for name in COLUMNS[:5]] == [10, 5, 3, 1, 0]
    assert point["kept"] == 0.8
    assert point["ttft_p50_s"] == pytest.approx(0.7, rel=0.15)
    assert point["ttft_p99_s"] == pytest.approx(0.95, rel=0.1)
    assert (point["kv_mean"], point["kv_max"]) == (0.15, 0.3)
    assert point["output_tokens"] == 1000


def test_nothing_seen_is_unknown_and_not_zero(stage: Stage) -> None:
    stage.pass_second()
    point = now(stage)
    assert point["completed"] == 0
    assert [point[name] for name in ("ttft_p99_s", "gap_p99_s", "kept", "kv_mean")] == [None] * 4


def test_fifteen_minutes_are_kept_and_memory_stays(stage: Stage) -> None:
    stage.ready()
    for _ in range(POINTS + 50):
        stage.serve(1)
        stage.pass_second()
    columns = stage.console._history.columns()
    assert {len(column) for column in columns.values()} == {POINTS}
    assert set(columns["completed"]) == {1.0}
    stage.serve(5)
    stage.pass_second()
    assert stage.console._history.columns()["completed"][-1] == 5
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(300):
            stage.pass_second()
        grown_bytes = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown_bytes < 100_000, "replaced one by one, nothing is added"


@given(st.lists(st.floats(0.001, 100.0), min_size=1, max_size=200), st.floats(0.01, 1.0))
def test_a_quantile_lies_in_the_bucket_of_the_true_one(values: list[float], share: float) -> None:
    buckets = Buckets()
    for value in values:
        buckets.add(value)
    true = sorted(values)[max(0, -int(-share * len(values) // 1) - 1)]
    found = quantile(buckets.counts, share)
    above = next(bound for bound in BOUNDS_S if bound >= true)
    below = max((bound for bound in BOUNDS_S if bound < true), default=0.0)
    assert below <= found <= above * (1 + 1e-9)


# --- events ---


def test_moves_are_told_once_with_what_it_was_before(stage: Stage) -> None:
    stage.ready()
    stage.pass_second()
    stage.gateway.probed(stage.instances[0], False)
    stage.pass_second()
    stage.pass_second()
    (event,) = [one for one in stage.console.state()["events"] if one.state == "ejected"]
    assert (event.instance, event.was, event.level) == ("tide-1", "ready", "bad")


def test_what_a_dead_engine_last_said_is_not_how_it_is(stage: Stage) -> None:
    stage.ready(lambda number: 0.4)
    stage.gateway.probed(stage.instances[0], False)
    rows = stage.console.state()["rows"]
    assert rows[0][1:4] == [None, None, None]
    assert rows[1][1:4] == [0.4, 4.0, 1.0]


def test_a_landslide_is_one_event() -> None:
    stage = Stage(1000)
    stage.ready()
    stage.pass_second()
    for instance in stage.instances:
        stage.gateway.probed(instance, False)
    stage.pass_second()
    fallen = [event for event in stage.console.state()["events"] if event.state == "ejected"]
    assert [event.count for event in fallen] == [1000]
    assert told(stage)[-2:] == ["unserved", "unserved"]


def test_an_open_breaker_is_a_state_of_its_own(stage: Stage) -> None:
    stage.ready()
    stage.pass_second()
    stage.instances[0].breaker.open(stage.clock.now())
    stage.pass_second()
    state = stage.console.state()
    assert state["states"][state["rows"][0][0]] == "tripped"
    (event,) = [one for one in state["events"] if one.state == "tripped"]
    assert (event.instance, event.was, event.level) == ("tide-1", "ready", "bad")


def test_metrics_that_stop_are_told_and_that_they_are_back(stage: Stage) -> None:
    stage.ready()
    for _ in range(7):
        stage.pass_second()
    assert told(stage).count("instance_stale") == 4
    stage.sample(0, 0.5)
    stage.pass_second()
    assert told(stage)[-1] == "instance_fresh"


def test_the_flood_is_told_when_it_begins_and_when_it_is_over(stage: Stage) -> None:
    stage.ready()
    stage.pass_second()
    for _ in range(30):
        stage.serve(2, ttft_s=3.0)
        stage.serve(1, outcome=Outcome.OVERLOADED)
        stage.pass_second()
    for _ in range(40):
        stage.serve(2, ttft_s=0.1)
        stage.pass_second()
    kinds = [kind for kind in told(stage) if kind.startswith(("refusing", "late"))]
    assert kinds == ["refusing", "late_ttft", "refusing_over", "late_ttft_over"]


@given(st.lists(st.booleans(), max_size=200), st.integers(1, 5))
def test_a_spell_begins_and_ends_in_turn(looks: list[bool], needed: int) -> None:
    spell = Spell(needed)
    states = [spell.on for look in looks if spell.turned(look)]
    assert states == [number % 2 == 0 for number in range(len(states))]
    if any(looks) and needed == 1:
        assert states


def test_events_are_bounded(stage: Stage) -> None:
    for number in range(KEPT * 2):
        stage.gateway.probed(stage.instances[0], bool(number % 2))
        stage.pass_second()
    assert len(told(stage)) == KEPT


# --- viewers ---


class Viewer:
    """An open stream, read event by event."""

    def __init__(self, served: Served) -> None:
        self._connection = HTTPConnection(HOST, served.port, timeout=20)
        self._connection.request("GET", "/console/stream")
        self.answer: HTTPResponse = self._connection.getresponse()

    def close(self) -> None:
        self._connection.close()
        self.answer.close()

    def next(self) -> tuple[str, dict[str, Any]]:
        lines = [self.answer.readline().decode().strip() for _ in range(3)]
        return lines[0].removeprefix("event: "), json.loads(lines[1].removeprefix("data: "))

    def ended(self) -> bool:
        return self.answer.readline() == b""


@pytest.fixture
def viewer(served: Served) -> Iterator[Viewer]:
    with closing(Viewer(served)) as viewer:
        yield viewer


def test_changes_put_together_are_the_whole(served: Served) -> None:
    served.do(served.ready, served.pass_second)
    with closing(Viewer(served)) as viewer:
        kind, picture = viewer.next()
        assert kind == "whole"
        rows, chance = picture["rows"], random.Random(1)
        for _ in range(12):
            number, kv = chance.randrange(4), chance.random()
            served.do(lambda number=number, kv=kv: served.sample(number, kv))  # type: ignore[misc]
            if chance.random() < 0.3:
                served.do(lambda number=number: served.gateway.probed(served.instances[number], False))  # type: ignore[misc]
            served.beat()
            kind, change = viewer.next()
            assert kind == "beat"
            for number, row in change["rows"]:
                rows[number] = row
        assert rows == json.loads(request("GET", served.port, "/console/state")[1])["rows"]


def test_a_newcomer_is_told_what_went_back_to_what_the_others_know(served: Served) -> None:
    served.do(served.ready)
    with closing(Viewer(served)) as first:
        first.next()
        served.beat()
        served.do(lambda: served.sample(1, 0.9))
        with closing(Viewer(served)) as newcomer:
            assert newcomer.next()[1]["rows"][1][1] == 0.9
            served.do(served.ready)
            served.beat()
            changes = dict(newcomer.next()[1]["rows"])
            assert changes[1][1] == 0.5


def test_a_row_that_did_not_change_is_not_sent(served: Served, viewer: Viewer) -> None:
    served.do(served.ready)
    viewer.next()
    served.beat()
    viewer.next()
    served.do(served.ready, lambda: served.sample(2, 0.9))
    served.beat()
    assert [number for number, _ in viewer.next()[1]["rows"]] == [2]


def test_viewers_are_bounded(served: Served) -> None:
    viewers = [Viewer(served) for _ in range(MAX_VIEWERS)]
    status, body = request("GET", served.port, "/console/stream")
    assert status == 503
    assert b"close one" in body
    for viewer in viewers:
        viewer.close()
    served.beat()
    assert served.console.viewers <= MAX_VIEWERS


def test_one_who_does_not_read_is_let_go_and_the_others_see_on() -> None:
    with Served(1000) as served, closing(Viewer(served)) as slow, closing(Viewer(served)) as quick:
        quick.next()
        for second in range(400):
            served.do(lambda second=second: served.ready(lambda number: (number + second) % 100 / 100))  # type: ignore[misc]
            served.beat()
            assert quick.next()[0] == "beat"
            if served.console.viewers == 1:
                break
        assert served.console.viewers == 1
        assert slow.next()[0] == "whole"


def test_the_page_is_fenced_in(served: Served) -> None:
    connection = HTTPConnection(HOST, served.port, timeout=20)
    with closing(connection):
        connection.request("GET", "/")
        answer = connection.getresponse()
        answer.read()
        assert (answer.status, answer.headers["location"]) == (307, "/console/")
        connection.request("GET", "/console/")
        answer = connection.getresponse()
        page = answer.read().decode()
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "http" not in page
    for path in ("/console/../console.css", "/console/%2e%2e/live.py", "/console/nothing"):
        assert request("GET", served.port, path)[0] == 404
