"""Verifies an emulated engine's text: word i of an answer is ` w<i>-<noun>`, so loss and repetition show.

In: token-carrying events in order. Out: the first fault found, as one phrase. The fast path is one formatted
needle and one search per event; only an event that does not hold exactly the next word is looked into.
"""

from __future__ import annotations

import re
from typing import Final

_WORD: Final = re.compile(rb" w(\d+)-[a-z]+")


class WordCheck:
    """Follows the words of one answer."""

    __slots__ = ("fault", "words")

    def __init__(self) -> None:
        self.words = 0
        """Words seen in order."""
        self.fault = ""
        """The first thing that was wrong; empty while all is well."""

    def feed(self, event: bytes) -> None:
        """One event that carries a token, or a whole body."""
        needle = b'" w%d-' % self.words
        if event.find(needle) >= 0 and event.count(b" w") == 1:
            self.words += 1
            return
        if not self.fault:
            self._look_closer(event)

    def _look_closer(self, event: bytes) -> None:
        found = [int(number) for number in _WORD.findall(event)]
        if not found:
            self.fault = f"a token without a word after {self.words} words"
        for number in found:
            if number != self.words:
                kind = "lost" if number > self.words else "repeated"
                self.fault = f"words {kind}: {number} where {self.words} was due"
                return
            self.words += 1

    def finish(self, output_tokens: int) -> None:
        """At the end of a completed answer: as many words as tokens are billed."""
        if not self.fault and self.words != output_tokens:
            self.fault = f"{self.words} words came, usage says {output_tokens}"
