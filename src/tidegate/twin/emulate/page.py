"""`/metrics` of an emulated engine: vLLM 0.33's names and labels, then `tidegate_emulated_*`.

Names, types and labels follow vLLM's own page (vllm metrics.*.txt); the help texts are ours. Counters that nothing
in the emulation moves (multi-modal cache, external KV) are there and 0, as they are on a vLLM without them.
"""

from __future__ import annotations

import time
from typing import Final

from tidegate.spec import EngineProfile
from tidegate.twin.counters import Statistics
from tidegate.twin.emulate.telemetry import Histogram, Telemetry
from tidegate.wire.prometheus import escape_label

CONTENT_TYPE: Final = b"text/plain; version=0.0.4; charset=utf-8"
CACHE_DTYPES: Final = {"bf16": "auto", "fp8": "fp8"}


class _Page:
    """Lines of a page under way. Samples carry the model's name, and the engine's number but for a few."""

    def __init__(self, model: str, created_s: float, engine: str = 'engine="0",') -> None:
        self.lines: list[str] = []
        self._engine = engine
        self._model = f'model_name="{model}"'
        self._labels = engine + self._model
        self._created_s = created_s

    def _with(self, label: str, value: str) -> str:
        """All labels and one more, in alphabetic order as Prometheus clients write them."""
        if label < "model_name":
            return f'{self._engine}{label}="{value}",{self._model}'
        return f'{self._labels},{label}="{value}"'

    def gauge(self, name: str, meaning: str, value: float) -> None:
        self._head(name, meaning, "gauge")
        self.lines.append(f"{name}{{{self._labels}}} {float(value)}")

    def gauges(self, name: str, meaning: str, label: str, values: dict[str, float]) -> None:
        self._head(name, meaning, "gauge")
        self._each(name, label, values)

    def counter(self, name: str, meaning: str, value: float) -> None:
        self._head(name + "_total", meaning, "counter")
        self.lines.append(f"{name}_total{{{self._labels}}} {float(value)}")
        self._head(name + "_created", meaning, "gauge")
        self.lines.append(f"{name}_created{{{self._labels}}} {self._created_s}")

    def counters(self, name: str, meaning: str, label: str, values: dict[str, float]) -> None:
        self._head(name + "_total", meaning, "counter")
        self._each(name + "_total", label, values)
        self._head(name + "_created", meaning, "gauge")
        self._each(name + "_created", label, dict.fromkeys(values, self._created_s))

    def histogram(self, name: str, meaning: str, histogram: Histogram) -> None:
        self._head(name, meaning, "histogram")
        below = 0
        for bound, count in zip(histogram.bounds, histogram.counts, strict=False):
            below += count
            self.lines.append(f"{name}_bucket{{{self._with('le', str(bound))}}} {float(below)}")
        below += histogram.counts[-1]
        self.lines.append(f"{name}_bucket{{{self._with('le', '+Inf')}}} {float(below)}")
        self.lines.append(f"{name}_count{{{self._labels}}} {float(below)}")
        self.lines.append(f"{name}_sum{{{self._labels}}} {float(histogram.total)}")
        self._head(name + "_created", meaning, "gauge")
        self.lines.append(f"{name}_created{{{self._labels}}} {self._created_s}")

    def _each(self, name: str, label: str, values: dict[str, float]) -> None:
        for key, value in values.items():
            self.lines.append(f"{name}{{{self._with(label, key)}}} {float(value)}")

    def _head(self, name: str, meaning: str, kind: str) -> None:
        self.lines.append(f"# HELP {name} {meaning}")
        self.lines.append(f"# TYPE {name} {kind}")


class MetricsPage:
    """Renders the page for one engine. About 400 lines; a fraction of a millisecond."""

    def __init__(self, model: str, profile: EngineProfile, telemetry: Telemetry) -> None:
        self._model = escape_label(model)
        self._profile = profile
        self._telemetry = telemetry
        self._created_s = time.time()

    def render(self, statistics: Statistics, errors: int) -> bytes:
        """The whole page. `errors` are requests refused with a 4xx."""
        page = _Page(self._model, self._created_s)
        self._gauges(page, statistics)
        self._counters(page, statistics)
        self._histograms(page)
        self._cache_config(page, statistics)
        self._emulated(page, statistics, errors)
        return "\n".join([*page.lines, ""]).encode()

    def _gauges(self, page: _Page, now: Statistics) -> None:
        page.gauge("vllm:num_requests_running", "Requests in the running batch.", now.running)
        page.gauge("vllm:num_requests_waiting", "Requests waiting to be scheduled.", now.waiting)
        reasons: dict[str, float] = {"capacity": now.waiting, "deferred": 0}
        page.gauges("vllm:num_requests_waiting_by_reason", "Waiting requests by reason.", "reason", reasons)
        states: dict[str, float] = {"awake": 1, "weights_offloaded": 0, "discard_all": 0}
        page.gauges(
            "vllm:engine_sleep_state", "Sleep state; awake is 1 for an engine that runs.", "sleep_state", states
        )
        used = now.kv_used_blocks / now.capacity_blocks if now.capacity_blocks else 0.0
        page.gauge("vllm:kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.", used)

    def _counters(self, page: _Page, now: Statistics) -> None:
        gpus, hits = self._profile.gpus, now.prefix_hit_tokens
        page.counter("vllm:estimated_flops_per_gpu", "FLOPs of processed tokens per GPU.", now.model_flops / gpus)
        page.counter("vllm:estimated_read_bytes_per_gpu", "Not modelled.", 0)
        page.counter("vllm:estimated_write_bytes_per_gpu", "Not modelled.", 0)
        page.counter("vllm:prefix_cache_queries", "Prompt tokens looked up in the cache.", now.prefix_query_tokens)
        page.counter("vllm:prefix_cache_hits", "Prompt tokens found in the cache.", hits)
        page.counter("vllm:external_prefix_cache_queries", "No external cache here.", 0)
        page.counter("vllm:external_prefix_cache_hits", "No external cache here.", 0)
        page.counter("vllm:mm_cache_queries", "No multi-modal input here.", 0)
        page.counter("vllm:mm_cache_hits", "No multi-modal input here.", 0)
        page.counter("vllm:num_preemptions", "Sequences preempted for want of KV blocks.", now.preemptions)
        page.counter("vllm:prompt_tokens", "Prompt tokens processed.", now.prompt_tokens)
        sources: dict[str, float] = {
            "local_compute": max(now.prompt_tokens - hits, 0), "local_cache_hit": hits, "external_kv_transfer": 0,
        }  # fmt: skip
        page.counters("vllm:prompt_tokens_by_source", "Prompt tokens by source.", "source", sources)
        page.counter("vllm:prompt_tokens_cached", "Prompt tokens found in a cache.", hits)
        tiers: dict[str, float] = {"device": hits, "host": 0, "p2p": 0, "disk": 0, "external_unspecified": 0}
        page.counters("vllm:prompt_tokens_cached_by_source", "Cached prompt tokens by tier.", "source", tiers)
        page.counter("vllm:generation_tokens", "Tokens generated.", now.output_tokens)
        finished: dict[str, float] = dict(self._telemetry.finished)
        page.counters("vllm:request_success", "Requests finished, by reason.", "finished_reason", finished)
        rejected = _Page(self._model, self._created_s, engine="")
        limits: dict[str, float] = {"max_num_queued_reqs": 0, "max_num_queued_tokens": 0}
        rejected.counters("vllm:admission_rejections", "Requests refused by a queue limit.", "reason", limits)
        page.lines += rejected.lines

    def _histograms(self, page: _Page) -> None:
        seen = self._telemetry
        for name, meaning, histogram in (
            ("request_prompt_tokens", "Prompt tokens of a request.", seen.prompt_tokens),
            ("request_generation_tokens", "Tokens generated for a request.", seen.generation_tokens),
            ("iteration_tokens_total", "Tokens processed in a step.", seen.step_tokens),
            ("request_max_num_generation_tokens", "Most tokens of any choice.", seen.max_generation_tokens),
            ("request_params_n", "Choices asked for.", seen.params_n),
            ("request_params_max_tokens", "Limit on output tokens.", seen.params_max_tokens),
            ("time_to_first_token_seconds", "From arrival to the first token.", seen.first_token_s),
            ("inter_token_latency_seconds", "Between tokens of a request.", seen.gap_s),
            ("request_time_per_output_token_seconds", "Mean gap of a request.", seen.token_s),
            ("e2e_request_latency_seconds", "From arrival to the last token.", seen.latency_s),
            ("request_queue_time_seconds", "Waiting to be scheduled.", seen.queue_s),
            ("request_inference_time_seconds", "From scheduling to the last token.", seen.inference_s),
            ("request_prefill_time_seconds", "From scheduling to the first token.", seen.prefill_s),
            ("request_decode_time_seconds", "From the first token to the last.", seen.decode_s),
            ("request_num_preemptions", "How often a request was preempted.", seen.preemptions),
            ("request_prefill_kv_computed_tokens", "Prompt tokens computed, not cached.", seen.computed_tokens),
        ):
            page.histogram("vllm:" + name, meaning, histogram)

    def _cache_config(self, page: _Page, now: Statistics) -> None:
        profile = self._profile
        tokens = now.capacity_blocks * profile.block_tokens
        labels = {
            "block_size": profile.block_tokens,
            "cache_dtype": CACHE_DTYPES[profile.kv_cache],
            "effective_attention_block_size": profile.block_tokens,
            "enable_prefix_caching": profile.prefix_cache,
            "engine": 0,
            "gpu_memory_utilization": profile.memory_fraction,
            "kv_cache_max_concurrency": tokens / profile.context_tokens,
            "kv_cache_size_tokens": tokens,
            "num_cpu_blocks": None,
            "num_gpu_blocks": now.capacity_blocks,
            "num_gpu_blocks_override": None,
            "sliding_window": None,
        }
        inner = ",".join(f'{key}="{value}"' for key, value in labels.items())
        page.lines.append("# HELP vllm:cache_config_info How the KV cache is configured.")
        page.lines.append("# TYPE vllm:cache_config_info gauge")
        page.lines.append(f"vllm:cache_config_info{{{inner}}} 1.0")

    def _emulated(self, page: _Page, now: Statistics, errors: int) -> None:
        pace, name = self._telemetry.pace, "tidegate_emulated_"
        page.gauge(name + "lag_seconds", "How late the last step ended on the wall clock.", pace.lag_s)
        page.gauge(name + "longest_lag_seconds", "The latest end of any step.", pace.longest_lag_s)
        page.gauge(name + "kept_pace", "1 while at most 1 % of steps were later than themselves.", pace.kept)
        page.counter(name + "late_steps", "Steps that ended later than they were long.", pace.late_steps)
        page.counter(name + "steps", "Scheduler steps.", now.steps)
        page.counter(name + "busy_seconds", "Time in steps.", now.busy_s)
        page.counter(name + "model_flops", "FLOPs of processed tokens, all GPUs.", now.model_flops)
        page.counter(name + "client_aborts", "Requests whose client left.", self._telemetry.client_aborts)
        page.counter(name + "refused", "Requests answered 4xx.", errors)
