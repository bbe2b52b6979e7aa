"""A gateway process in front of emulated engine processes, and what befalls them: leaving clients, signals, deaths."""

from __future__ import annotations

import http.client
import json
import re
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from tidegate.errors import ExitCode
from tidegate.node.process import answers
from tidegate.testing.live import HOST, free_port, wait_until
from tidegate.testing.processes import MODEL, Emulated, Gateway, Server, request
from tidegate.wire import sse

CHAT = "/v1/chat/completions"
JSON = {"content-type": "application/json"}


def body(max_tokens: int, index: int = 0, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"question {index}"}]
    return {"model": MODEL, "messages": messages, "max_tokens": max_tokens, "ignore_eos": True, **fields}


@contextmanager
def asked(server: Server, **fields: Any) -> Iterator[http.client.HTTPConnection]:
    """A connection on which a long completion was asked for; closed when the block is left."""
    connection = http.client.HTTPConnection(HOST, server.port, timeout=60)
    connection.request("POST", CHAT, json.dumps({**body(6000), **fields}), JSON)
    try:
        yield connection
    finally:
        connection.close()


class Ended:
    """How one request ended, as its client saw it."""

    def __init__(self, status: int, data: bytes) -> None:
        self.status = status
        splitter = sse.SseSplitter()
        self.events = splitter.feed(data) if status == 200 else []
        self.cut = splitter.pending_bytes > 0 or (status == 200 and not self.events)
        text = "".join(_text(event) for event in self.events)
        self.words = [int(number) for number in re.findall(r" w(\d+)-", text)]
        self.errors = [error for event in self.events if (error := sse.error_of(event)) is not None]
        self.finish = [reason for event in self.events if (reason := sse.finish_reason(event)) is not None]
        self.done = bool(self.events) and sse.is_done(self.events[-1])
        self.code = "" if status == 200 else str(json.loads(data)["error"]["code"])

    @property
    def in_order(self) -> bool:
        """Its text is the engine's, word by word, once."""
        return self.words == list(range(len(self.words)))


def _text(event: bytes) -> str:
    if sse.token_kind(event) == sse.NO_TOKEN:
        return ""
    return "".join(choice["delta"].get("content") or "" for choice in json.loads(sse.data_of(event))["choices"])


def streamed(server: Server, max_tokens: int, index: int) -> Ended:
    payload = json.dumps(body(max_tokens, index, stream=True)).encode()
    connection = http.client.HTTPConnection(HOST, server.port, timeout=60)
    try:
        connection.request("POST", CHAT, payload, JSON)
        answer = connection.getresponse()
        return Ended(answer.status, answer.read())
    except (http.client.IncompleteRead, http.client.RemoteDisconnected, ConnectionResetError) as exc:
        raise AssertionError(f"stream {index} was cut without a word: {exc!r}") from exc
    finally:
        connection.close()


@contextmanager
def streams(server: Server, count: int, max_tokens: int) -> Iterator[list[Future[Ended]]]:
    with ThreadPoolExecutor(count) as pool:
        yield [pool.submit(streamed, server, max_tokens, index) for index in range(count)]


@pytest.fixture
def engines(tmp_path: Path) -> Iterator[list[Emulated]]:
    with Emulated(tmp_path / "one") as one, Emulated(tmp_path / "two") as two:
        yield [one, two]


def official_client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1", api_key="any", max_retries=0)


def running(engines: list[Emulated]) -> float:
    return sum(engine.running() for engine in engines)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_reaches_the_engine(gateway: Gateway, pair: list[Emulated], stream: bool) -> None:
    with asked(gateway, stream=stream):
        wait_until("the request in an engine", lambda: running(pair) == 1)
    # The answer would have taken another 30 s.
    wait_until("both engines at rest", lambda: running(pair) == 0, patience_s=10)


def test_a_client_that_leaves_the_queue_is_never_sent(engines: list[Emulated], tmp_path: Path) -> None:
    limits = {"admission": {"max_in_flight": 1}, "queue": {"max_wait": "60s"}}
    with Gateway(tmp_path, [engines[0].url], limits) as gateway:
        with asked(gateway, stream=True):
            wait_until("the first in the engine", lambda: running(engines) == 1)
            before = engines[0].metric("vllm:prompt_tokens_total")
            with asked(gateway, stream=True):
                pass
        engines[0].wait_at_rest()
        assert gateway.chat(max_tokens=1)["usage"]["completion_tokens"] == 1
        # Six tokens of the request just made, none of the one that left.
        assert (engines[0].metric("vllm:prompt_tokens_total") or 0) - (before or 0) == 6


def test_sigterm_lets_streams_finish(engines: list[Emulated], tmp_path: Path) -> None:
    with Gateway(tmp_path, [engine.url for engine in engines], {"drain": "60s"}) as gateway:
        with streams(gateway, 6, max_tokens=300) as answered:
            wait_until("all in the engines", lambda: running(engines) == 6)
            gateway.signal(signal.SIGTERM)
            for answer in answered:
                ended = answer.result()
                assert (ended.status, ended.words, ended.finish, ended.done) == (
                    200,
                    list(range(300)),
                    ["length"],
                    True,
                )
        assert gateway.wait_exit() == ExitCode.OK
    assert running(engines) == 0


def test_streams_left_at_the_end_of_the_drain_get_an_error(engines: list[Emulated], tmp_path: Path) -> None:
    with Gateway(tmp_path, [engine.url for engine in engines], {"drain": "300ms"}) as gateway:
        with streams(gateway, 4, max_tokens=6000) as answered:
            wait_until("all in the engines", lambda: running(engines) == 4)
            gateway.signal(signal.SIGTERM)
            for answer in answered:
                ended = answer.result()
                assert not ended.cut
                assert len(ended.errors) == 1
                assert ended.in_order
        assert gateway.wait_exit() == ExitCode.OK
    wait_until("the engines told", lambda: running(engines) == 0, patience_s=10)


def test_ctrl_c_under_streams_is_clean(engines: list[Emulated], tmp_path: Path) -> None:
    with Gateway(tmp_path, [engine.url for engine in engines], {"drain": "300ms"}) as gateway:
        with streams(gateway, 4, max_tokens=6000) as answered:
            wait_until("all in the engines", lambda: running(engines) == 4)
            gateway.signal(signal.SIGINT)
            for answer in answered:
                assert len(answer.result().errors) == 1
        assert gateway.wait_exit() in (ExitCode.OK, ExitCode.INTERRUPTED)
    assert "Traceback" not in gateway.output()


def test_an_engine_killed_under_streams_is_told_to_each_of_them(engines: list[Emulated], tmp_path: Path) -> None:
    with Gateway(tmp_path, [engine.url for engine in engines]) as gateway:
        with streams(gateway, 12, max_tokens=500) as answered:
            wait_until("all in the engines", lambda: running(engines) == 12)
            wait_until(
                "all streams begun",
                lambda: sum(engine.metric("vllm:time_to_first_token_seconds_count") or 0 for engine in engines) == 12,
            )
            engines[0].kill()
            ends = [answer.result() for answer in answered]
        broken = [ended for ended in ends if ended.errors]
        whole = [ended for ended in ends if not ended.errors]
        assert broken
        assert whole
        for ended in broken:
            assert (len(ended.errors), ended.finish, ended.cut, ended.in_order) == (1, [], False, True)
        for ended in whole:
            assert (ended.words, ended.finish, ended.done) == (list(range(500)), ["length"], True)
        for _ in range(6):
            assert gateway.chat()["usage"]["completion_tokens"] == 4
        assert engines[1].running() == 0


def test_an_engine_that_dies_before_the_first_token_is_replaced(engines: list[Emulated], tmp_path: Path) -> None:
    with Gateway(tmp_path, [engine.url for engine in engines], {"retry": {"budget": 1.0}}) as gateway:
        engines[0].kill()
        for _ in range(8):
            assert gateway.chat()["usage"]["completion_tokens"] == 4


def test_an_engine_dead_at_the_start_is_passed_over_and_taken_in_later(tmp_path: Path) -> None:
    port = free_port()
    with (
        Emulated(tmp_path / "alive") as alive,
        Gateway(tmp_path, [f"http://{HOST}:{port}", alive.url]) as gateway,
    ):
        for _ in range(4):
            assert gateway.chat()["usage"]["completion_tokens"] == 4
        with Emulated(tmp_path / "late", port=port) as late:

            def taken_in() -> bool:
                gateway.chat()
                return (late.metric("vllm:prompt_tokens_total") or 0) > 0

            wait_until("the late engine at work", taken_in)


def test_no_engine_at_all_is_a_typed_503(tmp_path: Path) -> None:
    with Gateway(tmp_path, [f"http://{HOST}:{free_port()}"], healthy=False) as gateway:
        assert gateway.get("/health", gateway.health_port)[0] == 503
        with official_client(gateway) as client, pytest.raises(openai.InternalServerError) as caught:
            client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "x"}])
        assert caught.value.status_code == 503
        assert caught.value.code


def test_overload_is_a_typed_429_with_a_time_to_come_back(engines: list[Emulated], tmp_path: Path) -> None:
    limits = {"admission": {"max_in_flight": 1}, "queue": {"max_requests": 0}}
    with Gateway(tmp_path, [engines[0].url], limits) as gateway, asked(gateway, stream=True):
        wait_until("the engine taken", lambda: running(engines) == 1)
        with official_client(gateway) as client, pytest.raises(openai.RateLimitError) as caught:
            client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "x"}])
        assert int(caught.value.response.headers["retry-after"]) >= 1
        assert caught.value.code


def test_a_taken_port_is_exit_code_4(gateway: Gateway, pair: list[Emulated], tmp_path: Path) -> None:
    listen = f"{HOST}:{gateway.port}"
    second = Gateway(tmp_path, [pair[0].url], {"listen": listen})
    try:
        assert second.wait_exit() == ExitCode.UNAVAILABLE
    finally:
        second.stop()
    assert str(gateway.port) in second.output()
    assert "Traceback" not in second.output()


def test_curl_as_a_person_would(gateway: Gateway) -> None:
    """What the README shows, by the same bytes that curl sends."""
    status, answer = request("GET", gateway.port, "/v1/models", headers={"authorization": "Bearer any"})
    assert (status, json.loads(answer)["data"][0]["id"]) == (200, MODEL)
    assert answers(HOST, gateway.health_port)
    status, page = gateway.get("/metrics", gateway.health_port)
    assert status == 200
    assert b"tidegate_" in page
