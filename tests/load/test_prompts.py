"""Prompts are deterministic, of the wanted size, and equal exactly where their hashes are."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tidegate.load.prompts import PromptBook
from tidegate.traffic.plan import PlannedRequest
from tidegate.twin.emulate.tokenizer import count, encode_chat

BOOK = PromptBook(3, 'a "quoted" model')


def messages_of(plan: PlannedRequest, book: PromptBook = BOOK, purpose: str = "run") -> list[dict[str, str]]:
    body = msgspec.json.decode(book.body(plan, purpose))
    messages: list[dict[str, str]] = body["messages"]
    return messages


@given(st.integers(5, 30_000), st.integers(0, 10**6))
def test_an_emulated_engine_counts_the_planned_tokens(tokens: int, index: int) -> None:
    assert count(encode_chat(messages_of(PlannedRequest(index, 0.0, tokens, 5)))) == tokens


@given(st.integers(1, 2000), st.lists(st.integers(0, 2**62), min_size=1, max_size=8))
def test_hashed_prompts_have_the_planned_tokens_too(tokens: int, hashes: list[int]) -> None:
    plan = PlannedRequest(0, 0.0, tokens + 4, 5, prefix_hashes=tuple(hashes), prefix_block_tokens=16)
    assert count(encode_chat(messages_of(plan))) == tokens + 4


def test_very_long_prompts_wrap_around_the_pool_of_words() -> None:
    assert len(BOOK.prompt(PlannedRequest(0, 0.0, 200_004, 5))) == 800_000


def test_equal_hashes_are_equal_text_and_other_hashes_are_not() -> None:
    def prompt(*hashes: int) -> bytes:
        return BOOK.prompt(PlannedRequest(0, 0.0, 1540, 5, prefix_hashes=hashes))

    first, second = prompt(7, 8, 9), prompt(7, 8, 10)
    assert first[: 2 * 2048] == second[: 2 * 2048]
    assert first[2 * 2048 :] != second[2 * 2048 :]


def test_prompts_differ_from_their_first_word_between_requests_purposes_and_seeds() -> None:
    openings = {
        book.prompt(PlannedRequest(index, 0.0, 500, 5), purpose)[:64]
        for book in (BOOK, PromptBook(4, "m"))
        for index in range(50)
        for purpose in ("run", "warm-up")
    }
    assert len(openings) == 200


def test_bodies_are_the_same_for_the_same_seed_and_ask_as_planned() -> None:
    plan = PlannedRequest(1, 0.0, 50, 17, stream=False)
    assert BOOK.body(plan) == PromptBook(3, 'a "quoted" model').body(plan)
    body = msgspec.json.decode(BOOK.body(plan))
    assert (body["model"], body["max_tokens"], body["stream"]) == ('a "quoted" model', 17, False)
    assert body["ignore_eos"] is True
    assert "ignore_eos" not in msgspec.json.decode(PromptBook(3, "m", ignore_eos=False).body(plan))
