"""The emulated text: words that show loss, repetition and mix-ups."""

from __future__ import annotations

import re
import statistics

from hypothesis import given
from hypothesis import strategies as st

from tidegate.twin.emulate import words
from tidegate.twin.emulate.tokenizer import encode_text, prompt_hash

hashes = st.text(max_size=30).map(lambda text: prompt_hash(encode_text(text)))


@given(hashes, st.integers(0, 5), st.integers(0, 200), st.integers(0, 200))
def test_any_cut_of_an_answer_joins_to_the_whole(seed_hash: int, choice: int, a: int, b: int) -> None:
    seed = words.answer_seed(seed_hash, choice)
    middle, end = sorted((a, b))
    whole = words.text(seed, 0, end)
    assert words.text(seed, 0, middle) + words.text(seed, middle, end) == whole
    assert [int(number) for number in re.findall(rb" w(\d+)-[a-z]+", whole)] == list(range(end))


def test_two_prompts_or_two_choices_do_not_sound_alike() -> None:
    seeds = [words.answer_seed(prompt_hash(encode_text(f"prompt {i}")), choice) for i in range(20) for choice in (0, 1)]
    assert len({words.text(seed, 0, 8) for seed in seeds}) == len(seeds)


def test_natural_lengths_spread_as_documented() -> None:
    lengths = [words.natural_tokens(words.answer_seed(prompt_hash(encode_text(f"prompt {i}")), 0)) for i in range(2000)]
    assert min(lengths) >= 16
    assert max(lengths) <= 1024
    assert 150 < statistics.median(lengths) < 215
    assert len(set(lengths)) > 300
