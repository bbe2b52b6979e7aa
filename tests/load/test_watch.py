"""Engines watched beside a run: counters, restarts, deaths, and what is not known."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from tidegate.errors import BadInputError, UnavailableError
from tidegate.load.counters import Reading, Tally, began_anew, read_emulated, read_metrics
from tidegate.load.lag import client_bound_why, loop_lag_note
from tidegate.load.target import SPARE_FILES, Target, connection_bound, parse_http_url
from tidegate.load.watch import EngineUrl, Watch
from tidegate.transport.server import Exchange, HttpServer


class Counting:
    """An engine that only answers counters; `page` may be changed while it runs."""

    def __init__(self, path: str, page: bytes) -> None:
        self.path = path
        self.page = page

    def on_head(self, exchange: Exchange) -> None:
        pass

    def on_body(self, exchange: Exchange, data: bytes) -> None:
        pass

    def on_request_complete(self, exchange: Exchange) -> None:
        if exchange.target == self.path:
            exchange.respond(200, [], self.page)
        else:
            exchange.respond(404, [], b"")

    def on_gone(self, exchange: Exchange) -> None:
        pass

    def on_writable(self, exchange: Exchange, writable: bool) -> None:
        pass


def counters(**values: object) -> bytes:
    known: dict[str, object] = {"started_s": 1.0, "gpus": 8, "hardware": "h100", "peak_flops_per_s": 1e15}
    return msgspec.json.encode(known | values)


def test_what_an_emulated_engine_counted_in_the_window_is_a_record() -> None:
    async def scenario() -> Watch:
        engine = Counting(
            "/emulated/counters", counters(steps=10, preemptions=2, model_flops=5.0, kv_used_fraction=0.9)
        )
        server = HttpServer(engine)
        watch = Watch([EngineUrl(f"http://127.0.0.1:{await server.start('127.0.0.1', 0)}", "one")])
        await watch.start()
        await watch.mark_start()
        engine.page = counters(steps=25, preemptions=2, model_flops=9.0, kv_used_fraction=0.3, kept_pace=False)
        await watch.mark_end()
        await watch.close()
        await server.close()
        return watch

    watch = asyncio.run(scenario())
    (record,) = watch.records()
    assert watch.emulated
    assert watch.hardware == "h100"
    assert (record.name, record.gpus, record.steps, record.preemptions) == ("one", 8, 15, 0)
    assert (record.model_flops, record.kv_peak_fraction, record.exits_unasked) == (4.0, 0.3, 0)
    assert record.observed_s is not None
    assert any("too slow" in note for note in watch.notes)


def test_an_engine_that_dies_is_an_exit_and_one_that_never_was_is_a_note() -> None:
    async def scenario() -> Watch:
        server, other = (
            HttpServer(Counting("/metrics", b"vllm:num_preemptions_total 3\n")),
            HttpServer(Counting("", b"")),
        )
        port, dead = await server.start("127.0.0.1", 0), await other.start("127.0.0.1", 0)
        await other.close()
        watch = Watch([EngineUrl(f"http://127.0.0.1:{port}"), EngineUrl(f"http://127.0.0.1:{dead}")])
        await watch.start()
        await watch.mark_start()
        await server.close()
        await watch.mark_end()
        await watch.close()
        return watch

    watch = asyncio.run(scenario())
    (record,) = watch.records()
    assert record.exits_unasked == 1
    assert record.preemptions == 0
    assert not watch.emulated
    assert any(note.startswith("no counters from") for note in watch.notes)


def test_a_process_that_began_anew_is_seen_by_its_start_time() -> None:
    assert began_anew(Reading(started_s=1.0), Reading(started_s=2.0))
    assert not began_anew(Reading(started_s=1.0), Reading(started_s=1.0))
    assert not began_anew(Reading(), Reading(started_s=1.0))


def test_a_tally_adds_up_over_a_restart_and_keeps_unknown_unknown() -> None:
    tally = Tally()
    for steps in (5.0, 9.0, 2.0, 3.0):
        tally.add(Reading(steps=steps))
    assert tally.grown("steps") == 4 + 2 + 1
    assert tally.grown("preemptions") is None
    tally.restart()
    tally.add(Reading(steps=10.0))
    assert tally.grown("steps") == 7


def test_real_metrics_pages_are_understood(shared_dir: Path) -> None:
    page = next((shared_dir / "reference" / "engines" / "vllm").glob("metrics.*.txt")).read_bytes()
    reading = read_metrics(page, "vllm")
    assert reading.preemptions is not None
    assert reading.prompt_tokens is not None
    assert reading.started_s is not None
    assert reading.model_flops is None


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"steps": "x"}', b"\xff"])
def test_nonsense_is_no_reading(body: bytes) -> None:
    assert read_emulated(body) is None


@pytest.mark.parametrize(
    ("lag_s", "share", "held", "says"),
    [
        (0.004, 1.0, 0, ""),
        (0.006, 1.0, 0, "send lag P99 6.0 ms exceeds 10 % of the median gap (50.0 ms)"),
        (0.001, 0.97, 0, "sent 97.0% of the offered requests in time, less than 98 %"),
        (0.001, 0.5, 7, "7 requests waited for a free connection"),
    ],
)
def test_a_client_that_lags_is_marked(lag_s: float, share: float, held: int, says: str) -> None:
    why = client_bound_why(lag_s, 0.05, share, held)
    assert says in why
    assert bool(why) == bool(says)


def test_without_gaps_no_lag_can_be_judged() -> None:
    assert client_bound_why(1.0, None, None, 0) == ""
    assert loop_lag_note(1.0, None) == ""
    assert "6.0 ms late" in loop_lag_note(0.006, 0.05)


@pytest.mark.parametrize(
    "url",
    [
        "https://x",
        "ftp://x",
        "http://",
        "x:80",
        "http://h:99999",
        "http://h/?q=1",
        "http://[::1",
        "http://h:0",
        "http://é",
        "http://h/a b",
    ],
)
def test_urls_that_cannot_be_driven_are_one_sentence(url: str) -> None:
    with pytest.raises(BadInputError) as caught:
        parse_http_url(url)
    assert url.strip("'") in caught.value.message
    assert caught.value.hint


def test_a_url_may_end_in_v1_have_a_prefix_or_be_ipv6() -> None:
    assert parse_http_url("http://h:8000/v1/") == ("h", 8000, "")
    assert b"POST /team/v1/chat/completions HTTP/1.1" in Target("http://h/team/v1", "m").head(3)
    assert b"host: [::1]:81\r\n" in Target("http://[::1]:81", "m").head(3)


def test_more_connections_than_files_is_an_honest_error(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [(256, 1024)]
    monkeypatch.setattr("resource.getrlimit", lambda _: limits[-1])
    monkeypatch.setattr("resource.setrlimit", lambda _, pair: limits.append(pair))
    with pytest.raises(UnavailableError, match=r"5000 connections need 5128 open files, and this system allows 1024"):
        connection_bound(5000)
    assert connection_bound(None) == 1024 - SPARE_FILES
    assert connection_bound(100) == 100


def test_a_key_that_would_end_its_header_is_refused_and_not_repeated() -> None:
    with pytest.raises(BadInputError) as caught:
        Target("http://h", "m", "secret\r\nx: y")
    assert "secret" not in caught.value.message
