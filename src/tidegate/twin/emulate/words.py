"""What an emulated engine says: word i of an answer is a function of the prompt and i, and carries i.

` w17-kelp` is token 17. A lost, repeated or swapped token breaks the count; a token of another request has the
wrong noun. One token is one word is one chunk. Every instance gives the same answer to the same prompt.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Final

NOUNS: Final = tuple(
    b"kelp reef tide gull foam dune crab sail mast keel buoy cove wave surf sand salt shoal pearl coral otter "
    b"heron eider tern knot pier quay dock hull helm rope line hook fin gill roe cod eel ray bass perch trout "
    b"smelt squid whelk limpet mussel clam prawn krill spray swell ebb flood neap spring marsh creek delta "
    b"fjord strait channel lagoon atoll".split()
)
_COUNT: Final = len(NOUNS)
_MIX: Final = 0x9E3779B97F4A7C15
_MASK: Final = 2**64 - 1
MEDIAN_TOKENS: Final = 180
SPREAD: Final = 0.8
SHORTEST_TOKENS: Final = 16
LONGEST_TOKENS: Final = 1024


def answer_seed(prompt_hash: int, choice: int) -> int:
    """What the words of one choice depend on."""
    mixed = ((prompt_hash ^ (choice * _MIX)) * _MIX) & _MASK
    return mixed ^ (mixed >> 29)


def word(seed: int, index: int) -> bytes:
    """Token `index` of an answer, with its leading space. Never needs escaping in JSON."""
    return b" w%d-%b" % (index, NOUNS[((seed >> (index % 53)) + 7 * index) % _COUNT])


def text(seed: int, start: int, end: int) -> bytes:
    """Tokens `start` to `end` (not included) as text."""
    return b"".join([word(seed, index) for index in range(start, end)])


def natural_tokens(seed: int) -> int:
    """How long the answer is where the client does not say: log-normal over prompts, median 180, 16 to 1024."""
    share = (seed >> 11) / 2**53
    drawn = math.exp(math.log(MEDIAN_TOKENS) + SPREAD * NormalDist().inv_cdf(min(max(share, 1e-9), 1 - 1e-9)))
    return min(max(round(drawn), SHORTEST_TOKENS), LONGEST_TOKENS)
