"""The smallest OpenAI-compatible chat server: streams numbered words at a fixed gap, keeps every promise.

For tests of what drives a server (load driver, gateway). It models no engine; `tidegate emulate` does.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from tidegate.transport.server import Exchange

SSE = [(b"content-type", b"text/event-stream")]
JSON = [(b"content-type", b"application/json")]


def event(**members: object) -> bytes:
    """One server-sent event holding a JSON object."""
    return b"data: " + msgspec.json.encode(members) + b"\n\n"


def word(index: int) -> bytes:
    """The chunk that carries word `index`."""
    return event(choices=[{"index": 0, "delta": {"content": f" w{index}-kelp"}, "finish_reason": None}])


ROLE = event(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}}])
FINISH = event(choices=[{"index": 0, "delta": {}, "finish_reason": "length"}])
DONE = b"data: [DONE]\n\n"


def usage(prompt_tokens: int, output_tokens: int) -> bytes:
    """The closing usage chunk."""
    return event(choices=[], usage={"prompt_tokens": prompt_tokens, "completion_tokens": output_tokens})


class WordServer:
    """Answers any POST as a chat completion of `max_tokens` words, any GET with 404."""

    def __init__(self, gap_s: float = 0.0) -> None:
        self.gap_s = gap_s

    def on_head(self, exchange: Exchange) -> None:
        exchange.context = bytearray()

    def on_body(self, exchange: Exchange, data: bytes) -> None:
        assert isinstance(exchange.context, bytearray)
        exchange.context += data

    def on_request_complete(self, exchange: Exchange) -> None:
        if exchange.method != "POST":
            exchange.respond(404, JSON, b"{}")
            return
        assert isinstance(exchange.context, bytearray)
        self.answer(exchange, msgspec.json.decode(exchange.context))

    def answer(self, exchange: Exchange, body: dict[str, Any]) -> None:
        """A whole answer, or the beginning of a stream."""
        tokens: int = body["max_tokens"]
        prompt_tokens = max(1, len(str(body.get("messages", ""))) // 4)
        if body.get("stream"):
            exchange.start(200, SSE)
            exchange.send(ROLE)
            self._token(exchange, 0, tokens, prompt_tokens)
            return
        text = "".join(f" w{index}-kelp" for index in range(tokens))
        answer = {
            "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "length"}],
            "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": tokens},
        }
        exchange.respond(200, JSON, msgspec.json.encode(answer))

    def on_gone(self, exchange: Exchange) -> None:
        pass

    def on_writable(self, exchange: Exchange, writable: bool) -> None:
        pass

    def _token(self, exchange: Exchange, index: int, tokens: int, prompt_tokens: int) -> None:
        if exchange.ended:
            return
        if index == tokens:
            exchange.send(FINISH + usage(prompt_tokens, tokens) + DONE)
            exchange.finish()
            return
        exchange.send(word(index))
        asyncio.get_running_loop().call_later(self.gap_s, self._token, exchange, index + 1, tokens, prompt_tokens)
