"""One accepted request and its choices: what was made, what was said, how it ends.

    choice: made ≤ length tokens; said ≤ made.  Its last token, or an abort, ends it: exactly one finish reason.
    job:    open until its last choice ended (answered), or its client left (gone); nothing is said after either.

A client that reads too slowly gets several tokens in one chunk, as with vLLM, with the first token that is made once
it reads again; what is owed to it is a number, not a buffer.
"""

from __future__ import annotations

from typing import Final

import msgspec

from tidegate.transport.exchange import Exchange
from tidegate.twin.emulate import words
from tidegate.twin.emulate.chunks import Frame, running_usage
from tidegate.twin.emulate.order import Order
from tidegate.twin.emulate.tokenizer import block_hashes, count
from tidegate.twin.sequence import Sequence

STREAM_HEAD: Final = [(b"content-type", b"text/event-stream; charset=utf-8")]
JSON_HEAD: Final = [(b"content-type", b"application/json")]
REASONS: Final = {"stop": b'"stop"', "length": b'"length"', "abort": b'"abort"'}


class Choice:
    """One answer under way."""

    __slots__ = (
        "_after", "_before", "_exchange", "_first_word", "_pieces", "_plain", "_seed", "cached_tokens",
        "ended", "first_s", "index", "job", "length", "made", "reason", "said", "scheduled_s", "sequence",
        "stop_reason", "torn_s",
    )  # fmt: skip

    def __init__(self, job: Job, index: int, prompt: int, seed: int) -> None:
        self.job = job
        self.index = index
        self._seed = seed
        self.length, self.reason = job.order.answer_tokens(seed)
        self.stop_reason = b"null"
        self._pieces: list[bytes] | None = self._stopped() if job.order.stop else None
        tokens = job.order.prompts[prompt]
        self.sequence = Sequence(
            key=index,
            prompt_tokens=count(tokens),
            output_tokens=self.length,
            prefix_hashes=job.prefix_hashes[prompt],
            prefix_block_tokens=job.block_tokens,
            context=self,
        )
        self._before, self._after = job.frame.token(index)
        self._exchange = job.exchange if job.streaming else None
        """Where tokens go as they come; None when the answer is sent whole."""
        self._first_word = job.order.first_word
        self._plain = self._pieces is None and not job.frame.continuous_usage
        self.made = 0
        self.said = 0
        self.ended = False
        self.scheduled_s = -1.0
        self.cached_tokens = 0
        """Prompt tokens found in the prefix cache when it was scheduled."""
        self.first_s = -1.0
        self.torn_s = -1.0
        """End of its last step before a preemption, until its next token."""

    def token(self) -> None:
        """One more token; its last one ends the choice."""
        index = self.made
        self.made = index + 1
        if self.made == self.length:
            self.end(self.reason)
        elif self._exchange is not None and self._exchange.writable:
            if self._plain and self.said == index > 0:
                # The usual case, which is all that streams cost: nothing owed, one word, nothing counted in it.
                self.said = self.made
                self._exchange.send(self._before + words.word(self._seed, self._first_word + index) + self._after)
            else:
                self._say()

    def end(self, reason: str) -> None:
        """Ends the choice with `reason`; the last choice ends the job."""
        if self.ended:
            return
        self.ended = True
        if reason == "abort":
            self.stop_reason = b"null"
        self.reason = reason
        job = self.job
        if job.streaming:
            job.exchange.send(self._opening() + self._last())
            self.said = self.made
        job.choice_ended()

    def whole(self) -> bytes:
        """The finished choice in an answer that is not streamed."""
        return self.job.frame.whole_choice(self.index, self._text(0, self.made), REASONS[self.reason], self.stop_reason)

    def _say(self) -> None:
        text = self._text(self.said, self.made)
        after = self._after
        if self.job.frame.continuous_usage:
            after += running_usage(self.sequence.prompt_tokens, self.made) + b"}\n\n"
        opening = self._opening() if self.said == 0 else b""
        self.said = self.made
        self.job.exchange.send(b"%b%b%b%b" % (opening, self._before, text, after))

    def _opening(self) -> bytes:
        return self.job.frame.role(self.index, self.sequence.prompt_tokens) if self.said == 0 else b""

    def _last(self) -> bytes:
        frame = self.job.frame
        usage = running_usage(self.sequence.prompt_tokens, self.made) if frame.continuous_usage else b""
        return frame.last(self.index, self._text(self.said, self.made), REASONS[self.reason], self.stop_reason, usage)

    def _text(self, start: int, end: int) -> bytes:
        if self._pieces is not None:
            return b"".join(self._pieces[start:end])
        return words.text(self._seed, self._first_word + start, self._first_word + end)

    def _stopped(self) -> list[bytes]:
        """The tokens as they will be said when a stop string ends the answer early; sets length and reason."""
        first, order = self.job.order.first_word, self.job.order
        pieces = [words.word(self._seed, first + index) for index in range(self.length)]
        whole = b"".join(pieces)
        searched = len(b"".join(pieces[: order.min_tokens]))
        cut, stop = _first_stop(whole, searched, order.stop)
        if stop is None:
            return pieces
        self.reason = "stop"
        self.stop_reason = msgspec.json.encode(stop)
        return self._cut(pieces, cut, cut + len(stop.encode()))

    def _cut(self, pieces: list[bytes], cut: int, end: int) -> list[bytes]:
        """Tokens up to the one that completes the stop string, without what belongs to it."""
        kept: list[bytes] = []
        at = 0
        for piece in pieces:
            kept.append(piece[: max(0, cut - at)])
            at += len(piece)
            if at >= end:
                break
        self.length = len(kept)
        return kept


class Job:
    """One request under way, from its arrival at the engine to its answer."""

    __slots__ = (
        "_left", "arrived_s", "block_tokens", "choices", "exchange", "frame", "gone", "order", "prefix_hashes",
        "streaming",
    )  # fmt: skip

    def __init__(self, order: Order, exchange: Exchange, frame: Frame, block_tokens: int, arrived_s: float) -> None:
        self.order = order
        self.exchange = exchange
        self.frame = frame
        self.block_tokens = block_tokens
        self.arrived_s = arrived_s
        self.streaming = order.stream
        self.gone = False
        self.prefix_hashes = [block_hashes(prompt, block_tokens) for prompt in order.prompts]
        self.choices = [
            Choice(self, prompt * order.choices + number, prompt, words.answer_seed(order.hashes[prompt], number))
            for prompt in range(len(order.prompts))
            for number in range(order.choices)
        ]
        self._left = len(self.choices)

    @property
    def answered(self) -> bool:
        """Every choice has ended."""
        return self._left == 0

    @property
    def prompt_tokens(self) -> int:
        return sum(map(count, self.order.prompts))

    @property
    def output_tokens(self) -> int:
        return sum(choice.made for choice in self.choices)

    def open(self) -> None:
        """Sends the head of a streamed answer, as vLLM does once it has taken the request."""
        if self.streaming:
            self.exchange.start(200, STREAM_HEAD)

    def choice_ended(self) -> None:
        """Counts down; with the last choice the answer is whole."""
        self._left -= 1
        if self._left > 0:
            return
        if self.streaming:
            self.exchange.send(self.frame.closing(self.prompt_tokens, self.output_tokens))
            self.exchange.finish()
            return
        choices = [choice.whole() for choice in self.choices]
        self.exchange.respond(200, JSON_HEAD, self.frame.whole(choices, self.prompt_tokens, self.output_tokens))


def _first_stop(whole: bytes, searched: int, stops: list[str]) -> tuple[int, str | None]:
    """Where the earliest stop string begins at or after `searched`, and which it is."""
    cut, found = len(whole), None
    for stop in stops:
        at = whole.find(stop.encode(), searched)
        if 0 <= at < cut:
            cut, found = at, stop
    return cut, found
