"""llama.cpp behind the real gateway, asked by the official client: what goes in and out is the engine's own."""

from __future__ import annotations

import http.client
import json
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import psutil
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionChunk

from tidegate.node.process import Child, answers
from tidegate.testing.live import HOST, PATIENCE_S, LlamaCpp, free_port, wait_until

CONFIGURATION = """
version: 1
pools:
  - model: tiny
    instances: [{{url: "{engine}"}}]
    engine: {{kind: llamacpp, context_tokens: 8192}}
gateway:
  listen: "{host}:{port}"
  admin: "{host}:{admin}"
"""
PROMPT: list[Any] = [{"role": "user", "content": "Say something."}]


@pytest.fixture(scope="module")
def gateway_port(engine_process: LlamaCpp, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A gateway whose only instance is llama.cpp."""
    directory = tmp_path_factory.mktemp("gateway")
    port, admin = free_port(), free_port()
    file = directory / "tidegate.yaml"
    file.write_text(CONFIGURATION.format(engine=engine_process.url, host=HOST, port=port, admin=admin))
    words = [sys.executable, "-m", "tidegate", "gateway", "-c", str(file)]
    with Child("gateway", words, directory / "log") as child:
        child.wait_ready(lambda: answers(HOST, admin), PATIENCE_S)
        wait_until("the gateway to serve the model", lambda: serves(port))
        yield port


def serves(port: int) -> bool:
    """Whether the gateway sends work to its instance yet."""
    connection = http.client.HTTPConnection(HOST, port, timeout=PATIENCE_S)
    body = json.dumps({"model": "tiny", "messages": PROMPT, "max_tokens": 1})
    try:
        connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


@pytest.fixture
def client(engine: LlamaCpp, gateway_port: int) -> Iterator[OpenAI]:
    """The official client, which must not paper over anything by trying again."""
    with OpenAI(base_url=f"http://{HOST}:{gateway_port}/v1", api_key="any", max_retries=0, timeout=PATIENCE_S) as it:
        yield it


def direct(engine: LlamaCpp) -> OpenAI:
    """The same client straight to the engine."""
    return OpenAI(base_url=f"{engine.url}/v1", api_key="any", max_retries=0, timeout=PATIENCE_S)


def words_of(chunks: list[ChatCompletionChunk]) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def test_a_streamed_answer_is_the_engines_own(client: OpenAI, engine: LlamaCpp) -> None:
    asked: dict[str, Any] = {"model": "tiny", "messages": PROMPT, "max_tokens": 120, "temperature": 0}
    with direct(engine) as straight:
        expected = straight.chat.completions.create(**asked).choices[0].message.content
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert words_of(chunks) == expected
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"
    usage = chunks[-1].usage
    assert usage is not None
    assert usage.completion_tokens == 120
    assert usage.total_tokens == usage.prompt_tokens + 120


def test_usage_stays_away_from_who_did_not_ask(client: OpenAI) -> None:
    chunks = list(client.chat.completions.create(model="tiny", messages=PROMPT, max_tokens=9, stream=True))
    assert len(words_of(chunks).split()) == 9
    assert all(chunk.choices and chunk.usage is None for chunk in chunks)


def test_a_whole_answer_is_the_engines_own(client: OpenAI, engine: LlamaCpp) -> None:
    asked: dict[str, Any] = {"model": "tiny", "prompt": "tide", "max_tokens": 50, "temperature": 0}
    answer = client.completions.create(**asked)
    with direct(engine) as straight:
        expected = straight.completions.create(**asked)
    assert answer.choices[0].text == expected.choices[0].text
    assert answer.usage is not None
    assert expected.usage is not None
    assert answer.usage.completion_tokens == 50
    assert answer.usage.prompt_tokens == expected.usage.prompt_tokens


def test_many_requests_at_once_all_complete(client: OpenAI, engine: LlamaCpp) -> None:
    """More than the engine has slots, streams and whole answers in turn: it drops connections that are used again."""

    def one(number: int) -> int:
        if number % 3 == 0:
            whole = client.chat.completions.create(model="tiny", messages=PROMPT, max_tokens=5 + number)
            assert whole.usage is not None
            return whole.usage.completion_tokens
        chunks = list(client.chat.completions.create(model="tiny", messages=PROMPT, max_tokens=5 + number, stream=True))
        return len(words_of(chunks).split())

    with ThreadPoolExecutor(4 * engine.slots) as threads:
        assert list(threads.map(one, range(64))) == [5 + number for number in range(64)]


def leave_early(engine: LlamaCpp, port: int, max_tokens: int, stream: bool) -> None:
    """Asks for a long answer and goes away once the engine is at work."""
    connection = http.client.HTTPConnection(HOST, port, timeout=PATIENCE_S)
    body = json.dumps({"model": "tiny", "messages": PROMPT, "max_tokens": max_tokens, "stream": stream})
    connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
    wait_until("the engine at work", engine.busy)
    if stream:
        connection.getresponse().readline()
    connection.close()


def test_a_client_that_leaves_its_stream_frees_the_engine(engine: LlamaCpp, gateway_port: int) -> None:
    made = engine.metric("tokens_predicted_total")
    leave_early(engine, gateway_port, 8000, stream=True)
    wait_until("the engine free again", lambda: not engine.busy())
    assert engine.metric("tokens_predicted_total") - made < 8000


def test_a_client_that_leaves_a_whole_answer_takes_its_connection_to_the_engine_along(
    engine: LlamaCpp, gateway_port: int
) -> None:
    """llama.cpp finishes a whole answer for nobody, so what shows is its end of a connection the gateway closed."""

    def abandoned() -> set[int]:
        links = psutil.Process(engine.pid).net_connections("tcp")
        return {link.raddr.port for link in links if link.status == psutil.CONN_CLOSE_WAIT}

    leave_early(engine, gateway_port, 4000, stream=False)
    wait_until("a connection closed on the gateway's side", lambda: bool(abandoned()))
    assert engine.busy()


def test_the_engines_refusal_passes_through(client: OpenAI, engine: LlamaCpp) -> None:
    long: list[Any] = [{"role": "user", "content": "quay " * 4000}]
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="tiny", messages=long, max_tokens=5, stream=True)
    with direct(engine) as straight, pytest.raises(openai.BadRequestError) as expected:
        straight.chat.completions.create(model="tiny", messages=long, max_tokens=5, stream=True)
    assert refused.value.response.content == expected.value.response.content
    assert refused.value.type == "exceed_context_size_error"


def test_an_unknown_model_never_reaches_an_engine_that_would_answer_it(client: OpenAI, engine: LlamaCpp) -> None:
    before = engine.metric("prompt_tokens_total")
    with pytest.raises(openai.NotFoundError) as refused:
        client.chat.completions.create(model="gpt-17", messages=PROMPT, max_tokens=5)
    assert re.search("gpt-17", refused.value.message)
    assert engine.metric("prompt_tokens_total") == before
