"""What differs between engine kinds for someone who sends them requests.

Metric names are resolved in `wire.prometheus`. Sources: vLLM 0.33.0 and SGLang 0.5.23 as read and run,
xllamacpp 2026.10.11549 (llama.cpp's server) as run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


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


DIALECTS: Final[dict[str, Dialect]] = {
    "vllm": Dialect(health_path="/health"),
    # SGLang's /health generates a token and takes a second; /ping only reads flags.
    "sglang": Dialect(health_path="/ping", checks_model_name=False),
    # llama.cpp stops a stream when its client goes, but finishes a whole answer for nobody.
    "llamacpp": Dialect(health_path="/health", checks_model_name=False, reuses_connections=False),
}
"""By `EngineProfile.kind`."""
