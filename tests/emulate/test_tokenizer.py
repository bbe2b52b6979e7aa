"""The emulated tokenizer: counts a client can rely on, hashes that mean equal text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.twin.emulate import tokenizer
from tidegate.twin.emulate.tokenizer import PromptError

texts = st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=200)


@given(texts)
def test_text_comes_back_from_its_token_ids(text: str) -> None:
    ids = tokenizer.token_ids(tokenizer.encode_text(text))
    assert tokenizer.decode(tokenizer.encode_ids(ids)) == text
    assert len(ids) == -(-len(text.encode()) // 4)


@given(st.lists(st.tuples(st.sampled_from(["system", "user", "assistant", "tool", "other"]), texts), max_size=5))
def test_a_chat_costs_one_token_a_message_and_three_for_the_opening(messages: list[tuple[str, str]]) -> None:
    encoded = tokenizer.encode_chat([{"role": role, "content": text} for role, text in messages])
    assert tokenizer.count(encoded) == 3 + sum(1 + -(-len(text.encode()) // 4) for _, text in messages)


@given(texts, texts, texts)
def test_block_hashes_agree_exactly_as_far_as_the_tokens_do(common: str, one: str, other: str) -> None:
    first, second = tokenizer.encode_text(common * 4 + one), tokenizer.encode_text(common * 4 + other)
    a, b = tokenizer.block_hashes(first, 4), tokenizer.block_hashes(second, 4)
    assert len(a) == tokenizer.count(first) // 4
    for index, (left, right) in enumerate(zip(a, b, strict=False), start=1):
        assert (left == right) == (first[: index * 16] == second[: index * 16])


def test_equal_blocks_after_different_ones_are_not_equal() -> None:
    one, other = (tokenizer.block_hashes(encode * 4 + b"same" * 8, 4) for encode in (b"one ", b"two "))
    assert all(left != right for left, right in zip(one, other, strict=True))


def test_a_conversation_extends_the_blocks_of_its_beginning() -> None:
    first = [{"role": "system", "content": "s" * 400}, {"role": "user", "content": "u" * 400}]
    more = [*first, {"role": "assistant", "content": "a" * 40}, {"role": "user", "content": "next"}]
    shared = tokenizer.block_hashes(tokenizer.encode_chat(first), 16)
    again = tokenizer.block_hashes(tokenizer.encode_chat(more), 16)
    assert len(shared) == 12
    assert again[: len(shared)] == shared


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (["hello"], "messages.0"),
        ([{"content": "x"}], "messages.0.role"),
        ([{"role": 1, "content": "x"}], "messages.0.role"),
        ([{"role": "user", "content": 7}], "messages.0.content"),
        ([{"role": "user", "content": ["x"]}], "messages.0.content"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], "messages.0.content"),
    ],
)
def test_messages_that_are_none_are_refused(messages: list[object], param: str) -> None:
    with pytest.raises(PromptError) as caught:
        tokenizer.encode_chat(messages)
    assert caught.value.param == param


def test_parts_and_tool_calls_count() -> None:
    parts = [{"type": "text", "text": "ab"}, {"type": "text", "text": "cd"}]
    assert tokenizer.count(tokenizer.encode_chat([{"role": "user", "content": parts}])) == 5
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    assert tokenizer.count(tokenizer.encode_chat([message])) > 10


@pytest.mark.parametrize("token", [-1, 2**32])
def test_a_token_outside_the_vocabulary_is_refused(token: int) -> None:
    with pytest.raises(PromptError, match=str(token)):
        tokenizer.encode_ids([1, token])
