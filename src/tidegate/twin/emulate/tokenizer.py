"""The emulated tokenizer: four bytes of UTF-8 are one token, and its id is those bytes as a little-endian number.

Deterministic, reversible, and near the four bytes a token of English prose. A chat message begins with one header
token for its role and ends at a token edge; three more tokens open the answer. Text is never split by anything but
its bytes, so that a client can make a prompt of exactly n tokens: 4·n bytes.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from xxhash import xxh3_64_intdigest

TOKEN_BYTES: Final = 4
VOCABULARY: Final = 2**32
HEADER_TOKENS: Final = 1
OPENING: Final = b"<|a>\x00\x00\x00\x00answ"
"""Three tokens that a chat template puts before the answer."""
_ROLES: Final = {"system": b"<|s>", "user": b"<|u>", "assistant": b"<|a>", "tool": b"<|t>", "developer": b"<|d>"}


class PromptError(ValueError):
    """A prompt that vLLM would refuse too. `param` is the field to blame."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


def encode_text(text: str) -> bytes:
    """The tokens of a text, four bytes each."""
    return _padded(text.encode("utf-8", "surrogatepass"))


def encode_ids(ids: list[int]) -> bytes:
    """Token ids as tokens. Raises `PromptError` for an id outside the vocabulary."""
    try:
        return b"".join([token.to_bytes(TOKEN_BYTES, "little") for token in ids])
    except OverflowError:
        wrong = next(token for token in ids if not 0 <= token < VOCABULARY)
        raise PromptError(f"Token id {wrong} is out of vocabulary", "prompt") from None


def encode_chat(messages: list[Any], opening: bool = True) -> bytes:
    """The tokens of a conversation. Raises `PromptError` for what is not a list of messages."""
    parts: list[bytes] = []
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            raise PromptError(f"messages[{index}] must be an object", f"messages.{index}")
        role = message.get("role")
        if not isinstance(role, str):
            raise PromptError(f"messages[{index}].role must be a string", f"messages.{index}.role")
        parts.append(_ROLES.get(role, b"<|x>"))
        parts.append(_padded(_content(message, index)))
    if opening:
        parts.append(OPENING)
    return b"".join(parts)


def decode(tokens: bytes) -> str:
    """Text of tokens; padding is dropped."""
    return tokens.replace(b"\x00", b"").decode("utf-8", "replace")


def token_ids(tokens: bytes) -> list[int]:
    """The ids of tokens."""
    return [int.from_bytes(tokens[at : at + TOKEN_BYTES], "little") for at in range(0, len(tokens), TOKEN_BYTES)]


def count(tokens: bytes) -> int:
    """How many tokens."""
    return len(tokens) // TOKEN_BYTES


def block_hashes(tokens: bytes, block_tokens: int) -> tuple[int, ...]:
    """A hash for each whole block; equal hashes mean equal tokens up to the block's end."""
    size = block_tokens * TOKEN_BYTES
    hashes: list[int] = []
    before = 0
    for at in range(0, len(tokens) - size + 1, size):
        before = xxh3_64_intdigest(tokens[at : at + size], before)
        hashes.append(before)
    return tuple(hashes)


def prompt_hash(tokens: bytes) -> int:
    """What the answer's words depend on."""
    return xxh3_64_intdigest(tokens)


def _content(message: dict[str, Any], index: int) -> bytes:
    """A message's text; parts and tool calls count with the bytes they are written with."""
    content = message.get("content")
    if isinstance(content, str):
        text = content.encode("utf-8", "surrogatepass")
    elif content is None:
        text = b""
    elif isinstance(content, list):
        text = b"".join([_part(part, index) for part in content])
    else:
        raise PromptError(f"messages[{index}].content must be text or parts", f"messages.{index}.content")
    calls = message.get("tool_calls")
    return text + msgspec.json.encode(calls) if calls else text


def _part(part: Any, index: int) -> bytes:
    if not isinstance(part, dict):
        raise PromptError(f"messages[{index}].content holds something not an object", f"messages.{index}.content")
    if isinstance(part.get("text"), str):
        text: str = part["text"]
        return text.encode("utf-8", "surrogatepass")
    raise PromptError("this model takes text only", f"messages.{index}.content")


def _padded(data: bytes) -> bytes:
    return data + b"\x00" * (-len(data) % TOKEN_BYTES)
