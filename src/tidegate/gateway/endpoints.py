"""Which path is what: decided on the head, before any body is read."""

from __future__ import annotations

from typing import Final

from tidegate.wire.openai import CHAT_PATH, COMPLETIONS_PATH

INFERENCE_PATHS: Final = frozenset(
    (
        CHAT_PATH,
        COMPLETIONS_PATH,
        "/v1/responses",
        "/v1/messages",
        "/v1/embeddings",
        "/v1/rerank",
        "/v1/score",
        "/v1/classify",
        "/v1/pooling",
        "/v1/moderations",
        "/rerank",
        "/score",
        "/classify",
        "/pooling",
        "/tokenize",
        "/detokenize",
    )
)
"""POST only. Forwarded through admission; other POSTs under /v1/ are too, with plain accounting."""

CONTROL_PATHS: Final = frozenset(("/v1/load_lora_adapter", "/v1/unload_lora_adapter"))
"""They change an engine. That is no tenant's business: nothing is there."""

MODELS_PATH: Final = "/v1/models"
TOKEN_PATHS: Final = frozenset((CHAT_PATH, COMPLETIONS_PATH))
"""Streams whose chunks are understood: which carry tokens, and how they end."""

INFERENCE: Final = 0
MODELS: Final = 1
WRONG_METHOD: Final = 2
UNKNOWN: Final = 3


def path_of(target: str) -> str:
    """The path of a request target."""
    query = target.find("?")
    return target if query < 0 else target[:query]


def _means_itself(path: str) -> bool:
    """Whether every server behind this one reads the same path: `/v1/../metrics` and `/v1/%63hat` may be others."""
    return "%" not in path and "/." not in path and "//" not in path


def kind_of(method: str, path: str) -> int:
    """What a request is for."""
    models = path == MODELS_PATH or path.startswith(MODELS_PATH + "/")
    if models:
        return MODELS if method in ("GET", "HEAD") else WRONG_METHOD
    if path in CONTROL_PATHS:
        return UNKNOWN
    known = path in INFERENCE_PATHS
    if method == "POST":
        return INFERENCE if known or (path.startswith("/v1/") and len(path) > 4 and _means_itself(path)) else UNKNOWN
    return WRONG_METHOD if known else UNKNOWN
