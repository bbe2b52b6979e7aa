"""vLLM's answers as bytes: stream chunks and whole bodies (vllm stream.*.txt, responses.json).

A chunk differs from its neighbours only in the word, so everything around it is made once per choice and a token
costs one concatenation. Words need no escaping; model names and ids are escaped when the request arrives.
"""

from __future__ import annotations

from typing import Final

import msgspec

from tidegate.twin.emulate.order import Order

FINGERPRINT: Final = b'"vllm-0.33.0-tidegate-emulated"'
DONE: Final = b"data: [DONE]\n\n"


class Frame:
    """What all chunks of one request begin with, and which flavour they are."""

    __slots__ = ("_completion_id", "_created", "_model", "chat", "continuous_usage", "head", "include_usage")

    def __init__(self, order: Order, completion_id: str, model: str, created: int) -> None:
        self.chat = order.chat
        self.include_usage = order.include_usage
        self.continuous_usage = order.continuous_usage
        self._completion_id = msgspec.json.encode(completion_id)
        self._model = msgspec.json.encode(model)
        self._created = created
        kind = b"chat.completion.chunk" if order.chat else b"text_completion"
        self.head = b"data: " + self._opening(kind) + b',"choices":'

    def token(self, index: int) -> tuple[bytes, bytes]:
        """What goes before and after the text of one choice's chunk (without usage, unless it is continuous)."""
        if self.chat:
            before = b'[{"index":%d,"delta":{"content":"' % index
            after = b'"},"logprobs":null,"finish_reason":null,"token_ids":null}]'
        else:
            before = b'[{"index":%d,"text":"' % index
            after = (
                b'","logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]'
            )
        return self.head + before, after if self.continuous_usage else after + b"}\n\n"

    def role(self, index: int, prompt_tokens: int) -> bytes:
        """The chunk that opens a chat choice; nothing for a completion."""
        if not self.chat:
            return b""
        choice = b'[{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
        usage = running_usage(prompt_tokens, 0) if self.continuous_usage else b""
        return self.head + choice % index + usage + b',"prompt_token_ids":null,"prompt_text":null}\n\n'

    def last(self, index: int, text: bytes, reason: bytes, stop_reason: bytes, usage: bytes) -> bytes:
        """A choice's last chunk, which carries its finish reason. `usage` is `running_usage` or empty."""
        end = b'"finish_reason":%b,"stop_reason":%b' % (reason, stop_reason)
        if self.chat:
            choice = b'[{"index":%d,"delta":{"content":"%b"},"logprobs":null,%b,"token_ids":null}]'
        else:
            choice = b'[{"index":%d,"text":"%b","logprobs":null,%b,"prompt_token_ids":null,"token_ids":null}]'
        fingerprint = b"" if self.include_usage else b',"system_fingerprint":' + FINGERPRINT
        return self.head + choice % (index, text, end) + usage + fingerprint + b"}\n\n"

    def closing(self, prompt_tokens: int, output_tokens: int) -> bytes:
        """The end of a stream: the usage chunk where asked for, and `[DONE]`."""
        if not self.include_usage:
            return DONE
        usage = b'[],"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d},"system_fingerprint":%b}\n\n'
        total = prompt_tokens + output_tokens
        return self.head + usage % (prompt_tokens, total, output_tokens, FINGERPRINT) + DONE

    def whole(self, choices: list[bytes], prompt_tokens: int, output_tokens: int) -> bytes:
        """The body of an answer that is not streamed."""
        kind = b"chat.completion" if self.chat else b"text_completion"
        usage = (
            b'"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d,"prompt_tokens_details":null,'
            b'"completion_tokens_details":null}' % (prompt_tokens, prompt_tokens + output_tokens, output_tokens)
        )
        return b'%b,"choices":[%b],"service_tier":null,"system_fingerprint":%b,%b,"kv_transfer_params":null}' % (
            self._opening(kind),
            b",".join(choices),
            FINGERPRINT,
            usage,
        )

    def whole_choice(self, index: int, text: bytes, reason: bytes, stop_reason: bytes) -> bytes:
        """One choice of an answer that is not streamed."""
        end = b'"logprobs":null,"finish_reason":%b,"stop_reason":%b,"token_ids":null}' % (reason, stop_reason)
        if not self.chat:
            return b'{"index":%d,"text":"%b",%b' % (index, text, end)
        message = (
            b'{"role":"assistant","content":"%b","refusal":null,"annotations":null,"audio":null,'
            b'"function_call":null,"reasoning":null}' % text
        )
        return b'{"index":%d,"message":%b,%b' % (index, message, end)

    def _opening(self, kind: bytes) -> bytes:
        return b'{"id":%b,"object":"%b","created":%d,"model":%b' % (
            self._completion_id,
            kind,
            self._created,
            self._model,
        )


def running_usage(prompt_tokens: int, output_tokens: int) -> bytes:
    """The usage that `continuous_usage_stats` puts on every chunk."""
    return (
        b',"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d,"completion_tokens_details":null}'
        % (prompt_tokens, prompt_tokens + output_tokens, output_tokens)
    )
