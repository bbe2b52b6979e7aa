"""Engine figures as PromQL under one name, whatever the engine calls them: the recording rules' expressions.

Engines rename their metrics between releases, and a query for one name reads nothing after an upgrade. Each figure is
therefore a chain `newest or older or other engine`, evaluated per scraped server. Shares are averaged and never
summed; counts are added up over a server's engines after the ranks of one engine, which repeat a figure, are counted
once. Names: vLLM 0.24 to 0.33, SGLang 0.5.17 to 0.5.23, llama.cpp b11549; older ones from the engines' change logs.
"""

from __future__ import annotations

from typing import Final

SERVER: Final = "instance, instance_name, pool"
"""Labels that tell one scraped server from another; those that a scrape configuration does not set are empty."""
ENGINE: Final = f"{SERVER}, engine_type, model_name, dp_rank, engine"

GAUGES: Final = {
    "running": ("vllm:num_requests_running", "sglang:num_running_reqs", "llamacpp:requests_processing"),
    "waiting": ("vllm:num_requests_waiting", "sglang:num_queue_reqs", "llamacpp:requests_deferred"),
}
SHARES: Final = {
    "kv_used": (
        "vllm:kv_cache_usage_perc",
        "vllm:gpu_cache_usage_perc",
        "sglang:token_usage",
        "llamacpp:kv_cache_usage_ratio",
    ),
}
COUNTERS: Final = {
    "preemptions": (
        "vllm:num_preemptions_total",
        "vllm:num_preemptions",
        "sglang:num_retracted_requests_total",
        "sglang:num_retracted_reqs_total",
    ),
    "prompt_tokens": ("vllm:prompt_tokens_total", "sglang:prompt_tokens_total", "llamacpp:prompt_tokens_total"),
    "output_tokens": (
        "vllm:generation_tokens_total",
        "sglang:generation_tokens_total",
        "llamacpp:tokens_predicted_total",
    ),
}
HISTOGRAMS: Final = {
    "ttft": ("vllm:time_to_first_token_seconds", "sglang:time_to_first_token_seconds"),
    "gap": (
        "vllm:inter_token_latency_seconds",
        "vllm:time_per_output_token_seconds",
        "sglang:inter_token_latency_seconds",
        "sglang:time_per_output_token_seconds",
    ),
    "queue": ("vllm:request_queue_time_seconds", "sglang:queue_time_seconds"),
}
WINDOW: Final = "5m"
QUANTILE: Final = 0.99


def recorded() -> dict[str, str]:
    """Every engine figure: name of the recorded series → expression."""
    series = {f"server:tidegate_engine_{figure}:sum": gauge(figure) for figure in GAUGES}
    series |= {f"server:tidegate_engine_{figure}:avg": share(figure) for figure in SHARES}
    series |= {f"server:tidegate_engine_{figure}:rate{WINDOW}": rate(figure) for figure in COUNTERS}
    series |= {f"server:tidegate_engine_{figure}_seconds:p99_{WINDOW}": quantile(figure) for figure in HISTOGRAMS}
    return series


def gauge(figure: str) -> str:
    """A count: ranks of an engine once, engines of a server added up."""
    return _chain([f"sum by ({SERVER}) (max by ({ENGINE}) ({_total(name)}))" for name in GAUGES[figure]])


def share(figure: str) -> str:
    """A share of something, 0 to 1: the mean of a server's engines."""
    return _chain([f"avg by ({SERVER}) (max by ({ENGINE}) ({_total(name)}))" for name in SHARES[figure]])


def rate(figure: str) -> str:
    """A counter, per second."""
    return _chain([f"sum by ({SERVER}) (rate({name}[{WINDOW}]))" for name in COUNTERS[figure]])


def quantile(figure: str) -> str:
    """The 99th percentile of a duration, in seconds."""
    chain = [
        f"histogram_quantile({QUANTILE}, sum by ({SERVER}, le) (rate({name}_bucket[{WINDOW}])))"
        for name in HISTOGRAMS[figure]
    ]
    return _chain(chain)


def _total(name: str) -> str:
    """SGLang's priority classes split a figure; the sample without one is the whole."""
    return f'{name}{{priority=""}}'


def _chain(links: list[str]) -> str:
    return "\nor\n".join(links)
