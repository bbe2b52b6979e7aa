"""HTTP on an emulated engine: routes, bodies, refusals (vllm responses.json). See `engine` for what answers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from tidegate.spec import EngineProfile
from tidegate.transport.exchange import Exchange
from tidegate.twin.emulate import tokenizer
from tidegate.twin.emulate.chunks import Frame
from tidegate.twin.emulate.engine import Engine
from tidegate.twin.emulate.job import JSON_HEAD, Job
from tidegate.twin.emulate.order import (
    DetokenizeBody,
    RefusedError,
    TokenizeBody,
    bad_request,
    check_model,
    decode,
    read_order,
)
from tidegate.twin.emulate.page import CONTENT_TYPE, MetricsPage
from tidegate.twin.emulate.tokenizer import PromptError
from tidegate.wire.openai import CHAT_PATH, COMPLETIONS_PATH, error_body

VERSION: Final = "0.33.0"
MAX_SEQUENCES_PER_REQUEST: Final = 1024
NOT_FOUND: Final = b'{"detail":"Not Found"}'
WRONG_METHOD: Final = b'{"detail":"Method Not Allowed"}'
STOPPING: Final = "cannot schedule new futures after shutdown"

Answer = Callable[[Exchange, bytes], None]


class _Inbox:
    """A request whose body is still coming, then the job it became."""

    __slots__ = ("answer", "job", "parts")

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.parts: list[bytes] = []
        self.job: Job | None = None


class Service:
    """The application an emulated engine serves."""

    def __init__(self, engine: Engine, profile: EngineProfile, model: str, name: str, peak_flops_per_s: float) -> None:
        self.stopping = False
        """New requests get vLLM's 500 while the ones in flight may finish."""
        self._engine = engine
        self._profile = profile
        self._model = model
        self._name = name
        self._peak_flops_per_s = peak_flops_per_s
        self._page = MetricsPage(model, profile, engine.telemetry)
        self._refused = 0
        self._started_s = time.time()
        self._created = int(self._started_s)
        self._routes: dict[str, dict[str, Answer]] = {
            CHAT_PATH: {"POST": self._complete},
            COMPLETIONS_PATH: {"POST": self._complete},
            "/tokenize": {"POST": self._tokenize},
            "/detokenize": {"POST": self._detokenize},
            "/v1/models": {"GET": self._models},
            "/health": {"GET": self._empty},
            "/ping": {"GET": self._empty, "POST": self._empty},
            "/version": {"GET": self._version},
            "/load": {"GET": self._load},
            "/metrics": {"GET": self._metrics},
            "/emulated/counters": {"GET": self._counters},
        }

    # --- Application ---

    def on_head(self, exchange: Exchange) -> None:
        """Finds the route."""
        methods = self._routes.get(exchange.target.partition("?")[0])
        if methods is None:
            exchange.respond(404, JSON_HEAD, NOT_FOUND)
            return
        answer = methods.get("GET" if exchange.method == "HEAD" else exchange.method)
        if answer is None:
            exchange.respond(405, JSON_HEAD, WRONG_METHOD)
            return
        exchange.context = _Inbox(answer)

    def on_body(self, exchange: Exchange, data: bytes) -> None:
        if isinstance(exchange.context, _Inbox):
            exchange.context.parts.append(bytes(data))

    def on_request_complete(self, exchange: Exchange) -> None:
        inbox = exchange.context
        if not isinstance(inbox, _Inbox):
            return
        body = b"".join(inbox.parts)
        inbox.parts = []
        try:
            inbox.answer(exchange, body)
        except RefusedError as refused:
            self._refused += 1
            exchange.respond(refused.status, JSON_HEAD, refused.body)

    def on_gone(self, exchange: Exchange) -> None:
        inbox = exchange.context
        if isinstance(inbox, _Inbox) and inbox.job is not None:
            self._engine.abort(inbox.job)

    def on_writable(self, exchange: Exchange, writable: bool) -> None:
        """Nothing to do: a choice looks before it speaks."""

    # --- completions ---

    def _complete(self, exchange: Exchange, body: bytes) -> None:
        if self.stopping:
            raise RefusedError(500, error_body(STOPPING, "InternalServerError", 500))
        _check_json(exchange)
        path = exchange.target.partition("?")[0]
        order = read_order(body, path, self._model, self._profile.context_tokens)
        if len(order.prompts) * order.choices > MAX_SEQUENCES_PER_REQUEST:
            raise bad_request(f"one request may ask for {MAX_SEQUENCES_PER_REQUEST} answers at most.", "n")
        completion_id = ("chatcmpl-" if order.chat else "cmpl-") + (_request_id(exchange) or os.urandom(8).hex())
        frame = Frame(order, completion_id, self._model, int(time.time()))
        job = Job(order, exchange, frame, self._profile.block_tokens, self._engine.now())
        assert isinstance(exchange.context, _Inbox)
        exchange.context.job = job
        job.open()
        self._engine.submit(job)

    def _tokenize(self, exchange: Exchange, body: bytes) -> None:
        _check_json(exchange)
        wish: TokenizeBody = decode(body, TokenizeBody)
        check_model(wish.model, self._model)
        try:
            tokens = (
                tokenizer.encode_chat(wish.messages, wish.add_generation_prompt)
                if wish.messages is not None
                else tokenizer.encode_text(wish.prompt or "")
            )
        except PromptError as exc:
            raise bad_request(exc.message, exc.param) from exc
        _respond(
            exchange,
            {
                "count": tokenizer.count(tokens),
                "max_model_len": self._profile.context_tokens,
                "tokens": tokenizer.token_ids(tokens),
                "token_strs": None,
            },
        )

    def _detokenize(self, exchange: Exchange, body: bytes) -> None:
        _check_json(exchange)
        wish: DetokenizeBody = decode(body, DetokenizeBody)
        check_model(wish.model, self._model)
        try:
            _respond(exchange, {"prompt": tokenizer.decode(tokenizer.encode_ids(wish.tokens))})
        except PromptError as exc:
            raise bad_request(exc.message, "tokens") from exc

    # --- what tells about the engine ---

    def _models(self, exchange: Exchange, body: bytes) -> None:
        card = {
            "id": self._model,
            "object": "model",
            "created": self._created,
            "owned_by": "vllm",
            "root": self._profile.shape,
            "parent": None,
            "max_model_len": self._profile.context_tokens,
            "permission": [],
        }
        _respond(exchange, {"object": "list", "data": [card]})

    def _empty(self, exchange: Exchange, body: bytes) -> None:
        exchange.respond(200, [], b"")

    def _version(self, exchange: Exchange, body: bytes) -> None:
        _respond(exchange, {"version": VERSION, "emulated": True})

    def _load(self, exchange: Exchange, body: bytes) -> None:
        _respond(exchange, {"server_load": len(self._engine.jobs)})

    def _metrics(self, exchange: Exchange, body: bytes) -> None:
        page = self._page.render(self._engine.instance.statistics(), self._refused)
        exchange.respond(200, [(b"content-type", CONTENT_TYPE)], page)

    def _counters(self, exchange: Exchange, body: bytes) -> None:
        _respond(exchange, self.counters())

    def counters(self) -> dict[str, Any]:
        """What a run's report needs; counters since the start. Names as in `traffic.record.InstanceRecord`."""
        now, pace = self._engine.instance.statistics(), self._engine.telemetry.pace
        return {
            "emulated": True,
            "name": self._name,
            "model": self._model,
            "shape": self._profile.shape,
            "hardware": self._profile.hardware,
            "gpus": self._profile.gpus,
            "started_s": self._started_s,
            "steps": now.steps,
            "busy_s": now.busy_s,
            "preemptions": now.preemptions,
            "exits_unasked": 0,
            "model_flops": now.model_flops,
            "peak_flops_per_s": self._peak_flops_per_s,
            "kv_peak_fraction": now.kv_peak_blocks / now.capacity_blocks if now.capacity_blocks else None,
            "kv_used_fraction": now.kv_used_blocks / now.capacity_blocks if now.capacity_blocks else None,
            "kv_used_blocks": now.kv_used_blocks,
            "capacity_blocks": now.capacity_blocks,
            "block_tokens": self._profile.block_tokens,
            "prompt_tokens": now.prompt_tokens,
            "output_tokens": now.output_tokens,
            "running": now.running,
            "waiting": now.waiting,
            "kept_pace": pace.kept,
            "late_steps": pace.late_steps,
            "longest_lag_s": pace.longest_lag_s,
            "mean_lag_s": pace.total_lag_s / pace.steps if pace.steps else 0.0,
        }


def _check_json(exchange: Exchange) -> None:
    """vLLM takes JSON only, and says so by status 400."""
    if _header(exchange, b"content-type").partition(b";")[0].strip().lower() != b"application/json":
        message = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
        raise RefusedError(400, error_body(message, "Bad Request", 400))


def _request_id(exchange: Exchange) -> str:
    return _header(exchange, b"x-request-id").decode("latin-1")[:128]


def _header(exchange: Exchange, wanted: bytes) -> bytes:
    for name, value in exchange.headers:
        if name == wanted:
            return value
    return b""


def _respond(exchange: Exchange, answer: object) -> None:
    exchange.respond(200, JSON_HEAD, msgspec.json.encode(answer))
