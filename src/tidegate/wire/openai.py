"""OpenAI request bodies and error bodies, decoded only as far as decisions need.

One pass over the body splits its top level into (key, raw bytes) pairs; only small scalar fields are decoded,
`messages` and `prompt` stay raw. A 100 k-token prompt therefore costs one scan and no objects. The pairs keep
duplicates, which JSON leaves open and parsers resolve differently: a body that names a field twice is refused,
because what was metered must be what the engine runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct

CHAT_PATH: Final = "/v1/chat/completions"
COMPLETIONS_PATH: Final = "/v1/completions"
MAX_CHOICES: Final = 128
MAX_TOKENS: Final = 2**31 - 1
MAX_PRIORITY: Final = 2**31 - 1
MAX_MODEL_CHARS: Final = 512
MAX_STOP_BYTES: Final = 65_536
_NULL: Final = b"null"
_OPEN_ARRAY: Final = ord("[")
_QUOTE: Final = ord('"')

T = TypeVar("T")


class BadBody(Exception):  # noqa: N818 - it names the body, as `Outcome.BAD_REQUEST` names the request
    """A request body that cannot be served. One sentence, OpenAI's `param`, and a machine-readable `code`.

    `code` is one of `invalid_json`, `missing_field`, `invalid_type`, `invalid_value`, `duplicate_field`.
    """

    status: int = 400
    kind: str = "invalid_request_error"

    def __init__(self, message: str, param: str | None = None, code: str = "invalid_value") -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code

    def body(self) -> bytes:
        """The error as an OpenAI client expects it."""
        return error_body(self.message, self.kind, self.code, self.param)


class StreamOptions(Struct, frozen=True):
    """`stream_options`; fields not named here pass through unread."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class RequestBody(Struct, kw_only=True, gc=False):
    """What the gateway reads of a request. `None` means the client did not say."""

    model: str
    stream: bool = False
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int = 1
    stop: list[str] = []
    stream_options: StreamOptions | None = None
    priority: int | None = None
    user: str | None = None
    messages: Raw | None = None
    prompt: Raw | None = None
    prompt_bytes: int = 0
    """Bytes of the field that carries the prompt; of the whole body where the endpoint is not known."""

    @property
    def output_limit(self) -> int:
        """The client's limit on output tokens; -1 where it set none."""
        if self.max_completion_tokens is not None:
            return self.max_completion_tokens
        return -1 if self.max_tokens is None else self.max_tokens

    @property
    def include_usage(self) -> bool:
        """Whether the client asked for a usage chunk at the end of its stream."""
        return self.stream_options is not None and self.stream_options.include_usage is True


class _Key:
    """A key that equals only itself, so that the decoder's dict keeps every pair."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


def _new_key(_: type, name: Any) -> _Key:
    return _Key(name)


_PAIRS: Final = msgspec.json.Decoder(dict[_Key, Raw], dec_hook=_new_key)


_FIELDS: Final = msgspec.json.Decoder(dict[str, Raw])

MAX_FIELDS: Final = 1024
_FEW_COLONS: Final = 4096
"""A body with no more has no more fields; one with more is read with a count of them."""


class _FieldCount:
    """Makes keys, up to a bound: a body of nothing but keys would stop everything else for seconds."""

    def __init__(self) -> None:
        self.fields = 0

    def new_key(self, _: type, name: Any) -> _Key:
        self.fields += 1
        if self.fields > MAX_FIELDS:
            raise BadBody(f"The request body has more than {MAX_FIELDS} fields.", None, "invalid_value")
        return _Key(name)


def _compact_bytes(fields: dict[str, Raw]) -> int:
    """Bytes of an object of these fields without white space. A body that is no longer names no field twice."""
    return 1 + 4 * len(fields) + sum(map(len, fields)) + sum(map(len, fields.values()))


def decode_fields(body: bytes) -> dict[str, Raw]:
    """The top level of a JSON object, values undecoded.

    Raises `BadBody` for everything that is not one JSON object in UTF-8 with distinct keys.
    """
    if not body:
        raise BadBody("The request body is empty; send one JSON object.", None, "invalid_json")
    try:
        if not body.isascii():
            body.decode()
        if len(body) <= _FEW_COLONS or body.count(b":") <= _FEW_COLONS:
            quick = _FIELDS.decode(body)
            if len(body) == _compact_bytes(quick):
                return quick
            pairs = _PAIRS.decode(body)
        else:
            pairs = msgspec.json.decode(body, type=dict[_Key, Raw], dec_hook=_FieldCount().new_key)
    except UnicodeDecodeError as exc:
        raise BadBody(f"The request body is not UTF-8: byte {exc.start} is wrong.", None, "invalid_json") from exc
    except RecursionError as exc:
        raise BadBody("The request body is nested too deeply.", None, "invalid_json") from exc
    except msgspec.ValidationError as exc:
        raise BadBody("The request body must be a JSON object.", None, "invalid_json") from exc
    except (msgspec.DecodeError, ValueError) as exc:
        raise BadBody(f"The request body is not valid JSON: {_detail(exc)}.", None, "invalid_json") from exc
    fields = {key.name: raw for key, raw in pairs.items()}
    if len(fields) != len(pairs):
        raise _duplicate(pairs)
    return fields


class _Plain(Struct, gc=False):
    """A request as most of them are; anything else fails to decode into it."""

    model: Annotated[str, Meta(max_length=MAX_MODEL_CHARS)]
    stream: bool = False
    max_tokens: Annotated[int, Meta(ge=1, le=MAX_TOKENS)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1, le=MAX_TOKENS)] | None = None
    n: Literal[1] = 1
    stop: None = None
    stream_options: None = None
    priority: None = None
    user: None = None


_PLAIN: Final = msgspec.json.Decoder(_Plain)
PLAIN_BYTES: Final = 16_384
"""Bodies up to here are cheaper to read twice at once than once field by field."""


def _as_plain(body: bytes) -> RequestBody | None:
    """The request, read at once; None when something in it is unusual or wrong."""
    try:
        plain = _PLAIN.decode(body)
    except msgspec.ValidationError:
        return None
    if not plain.model.strip():
        return None
    return RequestBody(
        model=plain.model,
        stream=plain.stream,
        max_tokens=plain.max_tokens,
        max_completion_tokens=plain.max_completion_tokens,
    )


def decode_request(body: bytes, endpoint: str) -> RequestBody:
    """Decodes and validates what admission and routing need.

    `endpoint` is the request path. `messages` is required on `CHAT_PATH`, `prompt` on `COMPLETIONS_PATH`; on any
    other path only `model` is. Raises `BadBody`, and nothing else.
    """
    fields = decode_fields(body)
    if len(body) <= PLAIN_BYTES:
        plain = _as_plain(body)
        if plain is not None:
            _take_prompt(plain, fields, endpoint, len(body))
            return plain
    request = RequestBody(model=_model(fields))
    for name, raw in fields.items():
        read = _READERS.get(name)
        if read is not None and bytes(raw) != _NULL:
            read(request, raw)
    _take_prompt(request, fields, endpoint, len(body))
    return request


def error_body(message: str, kind: str, code: str | int | None, param: str | None = None, **extra: object) -> bytes:
    """An error in OpenAI's shape. `extra` are further members of the `error` object."""
    error: dict[str, object] = {"message": message, "type": kind, "param": param, "code": code}
    error.update(extra)
    return msgspec.json.encode({"error": error})


def error_event(body: bytes) -> bytes:
    """An error body as one in-band SSE event, for a stream that has already begun."""
    return b"data: " + body + b"\n\n"


def _model(fields: dict[str, Raw]) -> str:
    raw = fields.get("model")
    if raw is None or bytes(raw) == _NULL:
        raise BadBody("`model` is missing; name the model to use.", "model", "missing_field")
    model = _decode(_TEXT, raw, "model", "a string")
    if not model.strip():
        raise BadBody("`model` is empty; name the model to use.", "model")
    if len(model) > MAX_MODEL_CHARS:
        raise BadBody(f"`model` is longer than {MAX_MODEL_CHARS} characters.", "model")
    return model


def _take_prompt(request: RequestBody, fields: dict[str, Raw], endpoint: str, body_bytes: int) -> None:
    request.messages = fields.get("messages")
    request.prompt = fields.get("prompt")
    if endpoint == CHAT_PATH:
        text = _required(request.messages, "messages")
        if text[0] != _OPEN_ARRAY or (len(text) < 64 and not bytes(text[1:-1]).strip()):
            raise BadBody("`messages` must be a non-empty array.", "messages", "invalid_type")
        request.prompt_bytes = len(text)
    elif endpoint == COMPLETIONS_PATH and "prompt_embeds" not in fields:
        text = _required(request.prompt, "prompt")
        if text[0] not in (_QUOTE, _OPEN_ARRAY):
            raise BadBody("`prompt` must be a string or an array.", "prompt", "invalid_type")
        request.prompt_bytes = len(text)
    else:
        request.prompt_bytes = body_bytes


def _required(raw: Raw | None, name: str) -> memoryview:
    """The field's bytes, not copied: prompts are large."""
    view = memoryview(raw if raw is not None else _NULL)
    if len(view) == len(_NULL) and bytes(view) == _NULL:
        raise BadBody(f"`{name}` is missing.", name, "missing_field")
    return view


_TEXT: Final = msgspec.json.Decoder(str)
_BOOL: Final = msgspec.json.Decoder(bool)
_INT: Final = msgspec.json.Decoder(int)
_STOP: Final = msgspec.json.Decoder(str | list[str])
_OPTIONS: Final = msgspec.json.Decoder(StreamOptions)


def _decode(decoder: msgspec.json.Decoder[T], raw: Raw, name: str, wanted: str) -> T:
    try:
        return decoder.decode(raw)
    except (msgspec.DecodeError, ValueError, RecursionError) as exc:
        raise BadBody(f"`{name}` must be {wanted}.", name, "invalid_type") from exc


def _bounded(raw: Raw, name: str, least: int, most: int) -> int:
    value = _decode(_INT, raw, name, "an integer")
    if value < least:
        raise BadBody(f"`{name}` must be at least {least}, not {value if value > -MAX_TOKENS else 'less'}.", name)
    if value > most:
        raise BadBody(f"`{name}` must be at most {most}.", name)
    return value


def _read_stream(request: RequestBody, raw: Raw) -> None:
    request.stream = _decode(_BOOL, raw, "stream", "true or false")


def _read_max_tokens(request: RequestBody, raw: Raw) -> None:
    request.max_tokens = _bounded(raw, "max_tokens", 1, MAX_TOKENS)


def _read_max_completion_tokens(request: RequestBody, raw: Raw) -> None:
    request.max_completion_tokens = _bounded(raw, "max_completion_tokens", 1, MAX_TOKENS)


def _read_n(request: RequestBody, raw: Raw) -> None:
    request.n = _bounded(raw, "n", 1, MAX_CHOICES)


def _read_priority(request: RequestBody, raw: Raw) -> None:
    request.priority = _bounded(raw, "priority", -MAX_PRIORITY, MAX_PRIORITY)


def _read_user(request: RequestBody, raw: Raw) -> None:
    request.user = _decode(_TEXT, raw, "user", "a string")


def _read_stop(request: RequestBody, raw: Raw) -> None:
    if len(raw) > MAX_STOP_BYTES:
        raise BadBody(f"`stop` is larger than {MAX_STOP_BYTES} bytes.", "stop")
    stop = _decode(_STOP, raw, "stop", "a string or an array of strings")
    request.stop = [stop] if isinstance(stop, str) else stop


def _read_stream_options(request: RequestBody, raw: Raw) -> None:
    request.stream_options = _decode(_OPTIONS, raw, "stream_options", "an object of booleans")


_READERS: Final[dict[str, Callable[[RequestBody, Raw], None]]] = {
    "stream": _read_stream,
    "max_tokens": _read_max_tokens,
    "max_completion_tokens": _read_max_completion_tokens,
    "n": _read_n,
    "priority": _read_priority,
    "user": _read_user,
    "stop": _read_stop,
    "stream_options": _read_stream_options,
}


def _duplicate(pairs: dict[_Key, Raw]) -> BadBody:
    seen: set[str] = set()
    for key in pairs:
        if key.name in seen:
            shown = key.name if len(key.name) <= 64 else key.name[:64] + "…"
            return BadBody(f"`{shown}` appears more than once in the body.", shown, "duplicate_field")
        seen.add(key.name)
    raise AssertionError("called without a duplicate")


def _detail(exc: Exception) -> str:
    """The decoder's reason, without its own opening words."""
    text = str(exc).rstrip(".")
    return text.removeprefix("JSON is malformed: ").lower() if text else "it does not parse"
