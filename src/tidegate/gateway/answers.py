"""What the gateway itself says: refusals in OpenAI's error shape, the model list, an in-band error event.

`x-should-retry` is what the official OpenAI clients obey; `x-tidegate-reason` is the machine-readable cause.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from tidegate.errors import Outcome
from tidegate.policy.limit import INPUT_TOKENS, OUTPUT_TOKENS, REQUESTS, Standing
from tidegate.policy.ticket import Refusal
from tidegate.wire.http import JSON, Headers
from tidegate.wire.openai import error_body, error_event

_KINDS: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "invalid_request_error",
    405: "invalid_request_error",
    429: "rate_limit_error",
}

_LIMIT_NAMES: Final = {REQUESTS: b"requests", INPUT_TOKENS: b"tokens", OUTPUT_TOKENS: b"output-tokens"}

UNAUTHORIZED: Final = Refusal(
    Outcome.UNAUTHORIZED, 401, "invalid_api_key", "The API key is missing or not known here.", False
)


def unknown_path(path: str) -> Refusal:
    return Refusal(Outcome.BAD_REQUEST, 404, "unknown_path", f"There is nothing at {path[:200]}.", False)


def wrong_method(method: str, path: str, allowed: str) -> Refusal:
    return Refusal(
        Outcome.BAD_REQUEST, 405, "method_not_allowed", f"{path[:200]} takes {allowed}, not {method}.", False
    )


def unknown_model(model: str, served: list[str]) -> Refusal:
    message = f"The model `{model[:200]}` does not exist. Served here: {', '.join(served)}."
    return Refusal(Outcome.UNKNOWN_MODEL, 404, "model_not_found", message, False)


def refusal_body(refusal: Refusal, param: str | None = None) -> bytes:
    """A refusal as OpenAI's clients expect an error."""
    kind = _KINDS.get(refusal.status, "server_error" if refusal.status >= 500 else "invalid_request_error")
    return error_body(refusal.message, kind, refusal.code, param, retryable=refusal.retryable)


def refusal_headers(refusal: Refusal, request_id: bytes) -> Headers:
    """The headers of a refusal before any byte of an answer."""
    headers: Headers = [
        JSON,
        (b"x-request-id", request_id),
        (b"x-tidegate-reason", refusal.code.encode("ascii")),
        (b"x-should-retry", b"true" if refusal.retryable else b"false"),
    ]
    if refusal.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % max(1, math.ceil(refusal.retry_after_s))))
    if refusal.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    return headers


def refusal_event(refusal: Refusal) -> bytes:
    """The same inside a stream that has begun."""
    return error_event(refusal_body(refusal))


def model_entry(model: str) -> dict[str, object]:
    return {"id": model, "object": "model", "created": 0, "owned_by": "tidegate"}


def model_body(model: str) -> bytes:
    """The body of `GET /v1/models/{model}`."""
    return msgspec.json.encode(model_entry(model))


def model_list(models: list[str]) -> bytes:
    """The body of `GET /v1/models`."""
    return msgspec.json.encode({"object": "list", "data": [model_entry(model) for model in models]})


def limit_headers(standings: list[Standing]) -> Headers:
    """OpenAI's `x-ratelimit-*`, for each limit that applies: `requests`, `tokens` (the prompt's), `output-tokens`."""
    headers: Headers = []
    for standing in standings:
        name = _LIMIT_NAMES[standing.limit]
        headers.append((b"x-ratelimit-limit-%b" % name, b"%d" % standing.per_minute))
        headers.append((b"x-ratelimit-remaining-%b" % name, b"%d" % standing.remaining))
        headers.append((b"x-ratelimit-reset-%b" % name, b"%.3gs" % standing.reset_s))
    return headers
