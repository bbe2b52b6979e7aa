"""A request as the emulated engine understands it, and how vLLM words its refusals (vllm responses.json).

Decoding is strict where vLLM is: wrong types and impossible values are 400 before any work. What the emulation
cannot do (log-probabilities, echo, structured output) is refused, not ignored. Unknown fields are ignored, as
vLLM ignores them.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec
from msgspec import Struct

from tidegate.twin.emulate import tokenizer, words
from tidegate.twin.emulate.tokenizer import PromptError
from tidegate.wire.openai import CHAT_PATH, MAX_CHOICES, StreamOptions, error_body

MAX_STOPS: Final = 16
COMPLETIONS_DEFAULT_TOKENS: Final = 16
"""What `/v1/completions` makes where the client sets no limit, as OpenAI and vLLM do."""
_AT: Final = re.compile(r"^(.*?)(?: - at `\$\.?(.*)`)?$")
_LAST_WORD: Final = re.compile(r"w(\d{1,9})-[a-z]+\s*$")


class RefusedError(Exception):
    """The engine's answer is an error: HTTP status and whole body."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(body)
        self.status = status
        self.body = body


def bad_request(message: str, param: str | None) -> RefusedError:
    """vLLM's 400 for a value it will not take."""
    return RefusedError(400, error_body(message, "BadRequestError", 400, param))


def invalid(problem: str, location: str, message: str) -> RefusedError:
    """vLLM's 400 for a body that does not validate."""
    detail = f"1 validation error:\n  {{'type': '{problem}', 'loc': '{location}', 'msg': '{message}'}}"
    return RefusedError(400, error_body(detail, "Bad Request", 400, location))


class Body(Struct):
    """What is read of a completion request; a field is `None` where the client did not say."""

    model: str | None = None
    messages: list[Any] | None = None
    prompt: str | list[Any] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    echo: bool | None = None
    suffix: str | None = None
    logprobs: bool | int | None = None
    prompt_logprobs: int | None = None
    response_format: Any = None
    structured_outputs: Any = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    priority: int | None = None


class TokenizeBody(Struct):
    """What `/tokenize` reads."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Any] | None = None
    add_generation_prompt: bool = True


class DetokenizeBody(Struct):
    """What `/detokenize` reads."""

    tokens: list[int]
    model: str | None = None


class Order(Struct, kw_only=True):
    """A request that will be served."""

    chat: bool
    stream: bool
    include_usage: bool
    continuous_usage: bool
    prompts: list[bytes]
    """Each prompt's tokens (see `tokenizer`)."""
    hashes: list[int]
    """What each prompt's answers depend on: all of it, but for a message the answer continues."""
    choices: int
    """Answers for each prompt."""
    limit_tokens: int
    """The client's limit, or what is left of the context."""
    min_tokens: int
    ignore_eos: bool
    stop: list[str]
    first_word: int = 0
    """Where the words go on, when the client asks to continue a message of this engine."""

    def answer_tokens(self, seed: int) -> tuple[int, str]:
        """How many tokens the answer has, and why it ends: the client's limit, or its natural end.

        With `ignore_eos` the answer is as long as the client's limit; else it ends by nature
        (`words.natural_tokens`), not before `min_tokens`, not beyond the limit.
        """
        left = max(1, words.natural_tokens(seed) - self.first_word)
        length = self.limit_tokens if self.ignore_eos else max(left, self.min_tokens)
        return (length, "stop") if length < self.limit_tokens else (self.limit_tokens, "length")


def decode(body: bytes, shape: type[Any]) -> Any:
    """Decodes a body, or raises `RefusedError` as vLLM words it."""
    try:
        return msgspec.json.decode(body, type=shape)
    except msgspec.ValidationError as exc:
        match = _AT.match(str(exc))
        reason, path = (match.group(1), match.group(2)) if match else (str(exc), None)
        raise invalid("type_error", f"body.{path}" if path else "body", reason.replace("`", "")) from exc
    except (msgspec.DecodeError, ValueError, RecursionError) as exc:
        raise invalid("json_invalid", "body", "JSON decode error") from exc


def read_order(body: bytes, path: str, model: str, context_tokens: int) -> Order:
    """Understands a completion request of either endpoint. Raises `RefusedError`."""
    wish: Body = decode(body, Body)
    chat = path == CHAT_PATH
    prompts, hashes, first_word = _prompts(wish, chat)
    check_model(wish.model, model)
    _check_values(wish)
    _check_unsupported(wish)
    longest = max(map(tokenizer.count, prompts))
    limit = _limit(wish, longest, context_tokens, chat)
    if wish.min_tokens is not None and wish.min_tokens > limit:
        rule = f"min_tokens must be less than or equal to max_tokens={limit}"
        raise bad_request(_value_text(rule, "min_tokens", wish.min_tokens), "min_tokens")
    options = wish.stream_options or StreamOptions()
    return Order(
        chat=chat,
        stream=wish.stream is True,
        include_usage=options.include_usage is True,
        continuous_usage=options.include_usage is True and options.continuous_usage_stats is True,
        prompts=prompts,
        hashes=hashes,
        choices=wish.n or 1,
        limit_tokens=limit,
        min_tokens=wish.min_tokens or 0,
        ignore_eos=wish.ignore_eos is True,
        stop=[wish.stop] if isinstance(wish.stop, str) else wish.stop or [],
        first_word=first_word,
    )


def check_model(wanted: str | None, served: str) -> None:
    """vLLM's 404 for a model it does not serve."""
    if wanted is not None and wanted != served:
        message = f"The model `{wanted}` does not exist. Valid aliases: {served}."
        raise RefusedError(404, error_body(message, "NotFoundError", 404, "model"))


def _prompts(wish: Body, chat: bool) -> tuple[list[bytes], list[int], int]:
    """Prompts, what their answers depend on, and where the words go on."""
    try:
        if chat:
            return _chat_prompt(wish)
        if wish.prompt is None:
            raise invalid("missing", "body.prompt", "Field required")
        prompts = _completion_prompts(wish.prompt)
    except PromptError as exc:
        raise bad_request(exc.message, exc.param) from exc
    if not all(prompts):
        raise bad_request("The prompt is empty.", "prompt")
    return prompts, list(map(tokenizer.prompt_hash, prompts)), 0


def _chat_prompt(wish: Body) -> tuple[list[bytes], list[int], int]:
    if wish.messages is None:
        raise invalid("missing", "body.messages", "Field required")
    if not wish.messages:
        raise bad_request("messages is empty.", "messages")
    if wish.continue_final_message is not True:
        prompt = tokenizer.encode_chat(wish.messages)
        return [prompt], [tokenizer.prompt_hash(prompt)], 0
    if wish.add_generation_prompt is True:
        raise bad_request("continue_final_message excludes add_generation_prompt.", "add_generation_prompt")
    prompt = tokenizer.encode_chat(wish.messages, opening=False)
    content = wish.messages[-1].get("content")
    match = _LAST_WORD.search(content) if isinstance(content, str) else None
    # The words so far are no part of what the answer depends on: a continued answer is the same answer.
    before = tokenizer.encode_chat(wish.messages[:-1])
    return [prompt], [tokenizer.prompt_hash(before)], int(match.group(1)) + 1 if match else 0


def _completion_prompts(prompt: str | list[Any]) -> list[bytes]:
    if isinstance(prompt, str):
        return [tokenizer.encode_text(prompt)]
    if prompt and all(isinstance(item, str) for item in prompt):
        return [tokenizer.encode_text(item) for item in prompt]
    if _are_ids(prompt):
        return [tokenizer.encode_ids(prompt)]
    if prompt and all(isinstance(item, list) and _are_ids(item) for item in prompt):
        return [tokenizer.encode_ids(item) for item in prompt]
    raise PromptError("prompt must be text, token ids, or a list of either", "prompt")


def _are_ids(values: list[Any]) -> bool:
    return all(isinstance(value, int) and not isinstance(value, bool) for value in values)


def _check_values(wish: Body) -> None:
    _at_least("max_tokens", wish.max_tokens, 1)
    _at_least("max_completion_tokens", wish.max_completion_tokens, 1)
    _at_least("min_tokens", wish.min_tokens, 0)
    _at_least("n", wish.n, 1)
    if wish.n is not None and wish.n > MAX_CHOICES:
        raise bad_request(f"n must be at most {MAX_CHOICES}, got {wish.n}. (parameter=n, value={wish.n})", "n")
    if wish.temperature is not None and wish.temperature < 0:
        raise bad_request(
            _value_text("temperature must be non-negative", "temperature", wish.temperature), "temperature"
        )
    if wish.top_p is not None and not 0 < wish.top_p <= 1:
        raise bad_request(_value_text("top_p must be in (0, 1]", "top_p", wish.top_p), "top_p")
    if wish.stream_options is not None and wish.stream is not True:
        raise bad_request(
            "Stream options can only be defined when `stream=True`. (parameter=stream_options)", "stream_options"
        )
    stops = [wish.stop] if isinstance(wish.stop, str) else wish.stop or []
    if len(stops) > MAX_STOPS or not all(stops):
        raise bad_request(f"stop takes up to {MAX_STOPS} strings, none of them empty.", "stop")


def _check_unsupported(wish: Body) -> None:
    wanted: dict[str, bool] = {
        "echo": wish.echo is True,
        "suffix": wish.suffix is not None,
        "logprobs": wish.logprobs is not None and wish.logprobs is not False,
        "prompt_logprobs": wish.prompt_logprobs is not None,
        "structured_outputs": wish.structured_outputs is not None,
        "response_format": isinstance(wish.response_format, dict) and wish.response_format.get("type") != "text",
    }
    for name, asked in wanted.items():
        if asked:
            raise bad_request(f"{name} is not supported by the emulated engine; leave it out.", name)


def _limit(wish: Body, prompt_tokens: int, context_tokens: int, chat: bool) -> int:
    """The most tokens the answer may have."""
    if prompt_tokens >= context_tokens:
        raise bad_request(
            f"This model's maximum context length is {context_tokens} tokens. However, your prompt contains at least"
            f" {prompt_tokens} input tokens, which exceeds this limit even without any output tokens. Please reduce"
            f" the length of the input prompt. (parameter=input_tokens, value={prompt_tokens})",
            "input_tokens",
        )
    asked = wish.max_tokens
    if chat and wish.max_completion_tokens is not None:
        asked = wish.max_completion_tokens
    if asked is None:
        room = context_tokens - prompt_tokens
        return room if chat else min(room, COMPLETIONS_DEFAULT_TOKENS)
    if asked > context_tokens:
        raise bad_request(
            f"max_tokens={asked} cannot be greater than max_model_len={context_tokens}. Please request fewer output"
            f" tokens. (parameter=max_tokens, value={asked})",
            "max_tokens",
        )
    if prompt_tokens + asked > context_tokens:
        raise bad_request(
            f"This model's maximum context length is {context_tokens} tokens. However, {prompt_tokens} input tokens"
            f" and {asked} output tokens were requested. (parameter=input_tokens, value={prompt_tokens})",
            "input_tokens",
        )
    return asked


def _at_least(name: str, value: int | None, least: int) -> None:
    if value is not None and value < least:
        raise bad_request(_value_text(f"{name} must be at least {least}", name, value), name)


def _value_text(rule: str, name: str, value: float) -> str:
    return f"{rule}, got {value}. (parameter={name}, value={value})"
