"""The official openai client, unchanged, against an emulated engine and through the gateway."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tidegate.testing.processes import MODEL, Server

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hello"}]


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="any", max_retries=0, timeout=60) as client:
        yield client


def numbers(text: str | None) -> list[int]:
    return [int(number) for number in re.findall(r" w(\d+)-[a-z]+", text or "")]


def test_a_chat_completion(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=12)
    assert numbers(answer.choices[0].message.content) == list(range(12))
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (6, 12)
    assert answer.model == MODEL


def test_a_streamed_chat_completion(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=40, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert numbers(text) == list(range(40))
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"
    usage = chunks[-1].usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (6, 40)


def test_a_stream_without_usage_has_none(client: openai.OpenAI) -> None:
    chunks = list(client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=5, stream=True))
    assert all(chunk.usage is None for chunk in chunks)
    assert all(chunk.choices for chunk in chunks)


def test_completions_streamed_and_whole_say_the_same(client: openai.OpenAI) -> None:
    whole = client.completions.create(model=MODEL, prompt="hello there", max_tokens=20)
    stream = client.completions.create(model=MODEL, prompt="hello there", max_tokens=20, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == whole.choices[0].text
    assert numbers(whole.choices[0].text) == list(range(20))


def test_the_client_s_stream_helper(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model=MODEL, messages=HELLO) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert "".join(deltas) == final.choices[0].message.content
    words = numbers(final.choices[0].message.content)
    assert words == list(range(len(words)))
    assert len(words) >= 16


def test_several_choices_and_stop(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=30, n=3, stop=[" w4-"])
    assert [numbers(choice.message.content) for choice in answer.choices] == [[0, 1, 2, 3]] * 3
    assert {choice.finish_reason for choice in answer.choices} == {"stop"}
    assert len({choice.message.content for choice in answer.choices}) == 3


def test_an_answer_without_a_limit_ends_by_itself(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=HELLO)
    assert answer.choices[0].finish_reason == "stop"
    assert len(numbers(answer.choices[0].message.content)) >= 16


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]


def test_a_long_prompt(client: openai.OpenAI) -> None:
    text = "long prompt " * 5000
    answer = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": text}], max_completion_tokens=3
    )
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 4 + len(text) // 4


def test_errors_are_the_client_s_own_types(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as not_found:
        client.chat.completions.create(model="no-such-model", messages=HELLO)
    assert "no-such-model" in str(not_found.value.message)
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=0)
    assert bad.value.param == "max_tokens"
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model=MODEL, messages=[])
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=MODEL, messages=HELLO, temperature=-1)
    assert refused.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as too_long:
        client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "x" * 70_000}], max_tokens=5, stream=True
        )
    assert "maximum context length" in str(too_long.value)
    with pytest.raises(openai.NotFoundError):
        client.get("/no-such-path", cast_to=object)


def test_the_async_client_with_many_streams_at_once(server: Server) -> None:
    async def one(client: openai.AsyncOpenAI, index: int) -> tuple[str, str]:
        messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": f"number {index}"}]
        if index % 4 == 0:
            whole = await client.chat.completions.create(model=MODEL, messages=messages, max_tokens=30)
            return whole.id, whole.choices[0].message.content or ""
        parts, answer_id = [], ""
        async for chunk in await client.chat.completions.create(
            model=MODEL, messages=messages, max_tokens=30, stream=True
        ):
            answer_id = chunk.id
            parts.append(chunk.choices[0].delta.content or "")
        return answer_id, "".join(parts)

    async def all_of_them() -> list[tuple[str, str]]:
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="any", max_retries=0) as client:
            return await asyncio.gather(*(one(client, index) for index in range(32)))

    answers = asyncio.run(all_of_them())
    assert all(numbers(text) == list(range(30)) for _, text in answers)
    assert len({answer_id for answer_id, _ in answers}) == len({text for _, text in answers}) == 32


def test_a_stream_closed_early_is_forgotten(client: openai.OpenAI) -> None:
    """The `server` fixture waits until the engines are at rest, long before the answer would have ended."""
    with client.chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=8000, stream=True, extra_body={"ignore_eos": True}
    ) as stream:
        for number, _ in enumerate(stream):
            if number == 5:
                break
