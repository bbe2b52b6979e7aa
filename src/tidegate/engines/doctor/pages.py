"""What pages of metrics show: one page for a state, two of the same instance for progress."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Final

from tidegate.engines.doctor.diagnosis import Confidence, Diagnosis, Evidence
from tidegate.wire.prometheus import Exposition, engine_sample, parse

JITTER: Final = 4.0
"""P99 of gaps over their median from which latency is called jittery, if it also exceeds 100 ms."""
_JITTER_S: Final = 0.1
_ITL: Final = {"vllm": "vllm:inter_token_latency_seconds", "sglang": "sglang:inter_token_latency_seconds"}
_PROGRESS: Final = {
    "vllm": ("vllm:generation_tokens_total", "vllm:prompt_tokens_total"),
    "sglang": ("sglang:realtime_tokens_total",),
}


class MetricsPage:
    """A parsed page. `kind` is the engine it comes from; empty when it is neither's."""

    __slots__ = ("kind", "name", "page")

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.page: Exposition = parse(text)
        names = self.page.samples
        kinds = [kind for kind in ("vllm", "sglang") if any(name.startswith(kind + ":") for name in names)]
        self.kind = kinds[0] if kinds else ""

    def evidence(self, text: str) -> Evidence:
        return Evidence(self.name, 0, text)


def examine_pages(pages: list[MetricsPage]) -> list[Diagnosis]:
    """Everything the pages show, each by itself and one after the other in time."""
    found: list[Diagnosis | None] = []
    for page in pages:
        if not page.kind:
            found.append(_no_engine(page))
            continue
        found += [_kv_full(page), _waiting(page), _jitter(page)]
    for before, after in pairwise(pages):
        if before.kind and before.kind == after.kind:
            found.append(_frozen(before, after))
    return [one for one in found if one is not None]


def _no_engine(page: MetricsPage) -> Diagnosis:
    return Diagnosis(
        id="no-engine-metrics",
        title="The page holds no engine's metrics",
        confidence=Confidence.MEDIUM,
        evidence=(page.evidence(f"{len(page.page.samples)} metrics, none of vllm: or sglang:"),),
        cause="it is another program's page, or SGLang was started without --enable-metrics",
        fix=("ask the engine's own /metrics; add --enable-metrics to SGLang",),
        try_command="tidegate lint SCRIPT --fix",
        reference="kubernetes-sigs/gateway-api-inference-extension#1905",
    )


def _kv_full(page: MetricsPage) -> Diagnosis | None:
    fields = engine_sample(page.page, page.kind)
    if fields.kv_used_fraction is None or fields.kv_used_fraction < 0.95:
        return None
    said = f"KV usage {fields.kv_used_fraction:.3f}"
    if fields.preemptions is not None:
        said += f", {fields.preemptions:.0f} preemptions so far"
    return Diagnosis(
        id="kv-cache-full",
        title="The KV cache is full and requests are computed twice",
        confidence=Confidence.HIGH if fields.preemptions else Confidence.MEDIUM,
        evidence=(page.evidence(said),),
        cause="more running tokens than KV blocks; the last request is thrown out and recomputed later",
        fix=(
            "admit less in front of the engine, or lower the running sequences",
            "an FP8 KV cache holds twice the tokens",
        ),
        try_command="tidegate fit MODEL --gpu GPU --kv-cache fp8",
    )


def _waiting(page: MetricsPage) -> Diagnosis | None:
    fields = engine_sample(page.page, page.kind)
    running, waiting = fields.running, fields.waiting
    if waiting is None or running is None or waiting == 0:
        return None
    said = page.evidence(f"{running:.0f} running, {waiting:.0f} waiting")
    if running == 0:
        return Diagnosis(
            id="scheduler-frozen",
            title="Requests wait and nothing runs",
            confidence=Confidence.MEDIUM,
            evidence=(said,),
            cause="the scheduler does not run what it holds, although /health may answer 200",
            fix=("judge liveness by progress; restart the instance as one if a second page shows the same",),
            try_command="take the page again after 30 s and give both to tidegate doctor",
            reference="gonka-ai/gonka#1421, vllm-project/vllm#39863",
        )
    if waiting < 8 or waiting * 5 < running:
        return None
    return Diagnosis(
        id="queue-in-engine",
        title="Requests queue inside the engine",
        confidence=Confidence.HIGH if waiting > running else Confidence.MEDIUM,
        evidence=(said,),
        cause="more arrives than is served, and TTFT grows with the queue",
        fix=(
            "bound admission in front with 429 and Retry-After",
            "add instances, or raise the sequences if KV is free",
        ),
        try_command="tidegate demo",
        reference="vllm-project/vllm#32193",
    )


def _jitter(page: MetricsPage) -> Diagnosis | None:
    median, high = (quantile(page.page, _ITL[page.kind], share) for share in (0.5, 0.99))
    if median is None or high is None or high < _JITTER_S or high < JITTER * median:
        return None
    return Diagnosis(
        id="latency-jitter",
        title="Gaps between tokens are uneven",
        confidence=Confidence.MEDIUM,
        evidence=(page.evidence(f"gaps of at most {median * 1e3:.0f} ms at P50, {high * 1e3:.0f} ms at P99"),),
        cause="full prompts share steps with open streams: a step's budget is the batching policy that decides a gap",
        fix=(
            "lower the step budget (vLLM --max-num-batched-tokens 2048; SGLang --enable-mixed-chunk)",
            "bound queued prompt tokens per instance in front, give long prompts a lane of their own",
        ),
        try_command="tidegate lint SCRIPT --model MODEL --gpu GPU --itl 50ms",
        reference="local-inference-lab/vllm#541",
    )


def quantile(page: Exposition, name: str, share: float) -> float | None:
    """The bucket bound below which `share` of a histogram lies, over all its labels; None without observations."""
    buckets: dict[float, float] = {}
    for sample in page.get(name + "_bucket"):
        try:
            bound = float(sample.labels.get("le", ""))
        except ValueError:
            continue
        buckets[bound] = buckets.get(bound, 0.0) + sample.value
    total = buckets.get(math.inf, 0.0)
    if total <= 0:
        return None
    reached = [bound for bound, count in sorted(buckets.items()) if count >= share * total and math.isfinite(bound)]
    return reached[0] if reached else None


def _frozen(before: MetricsPage, after: MetricsPage) -> Diagnosis | None:
    """Work pending in both pages and not one token between them."""
    fields = [engine_sample(one.page, one.kind) for one in (before, after)]
    pending = [(one.running or 0) + (one.waiting or 0) for one in fields]
    known = [name for name in _PROGRESS[after.kind] if after.page.sum(name) is not None]
    if min(pending) == 0 or not known:
        return None
    if any(before.page.sum(name) != after.page.sum(name) for name in known):
        return None
    return Diagnosis(
        id="no-progress",
        title="Work is pending and no token comes",
        confidence=Confidence.HIGH,
        evidence=(
            before.evidence(f"{pending[0]:.0f} requests, {known[0]} {before.page.sum(known[0]):.0f}"),
            after.evidence(f"{pending[1]:.0f} requests, {known[0]} {after.page.sum(known[0]):.0f}"),
        ),
        cause="the engine hangs, for example in a collective operation, while its health endpoint answers 200",
        fix=("restart all processes of the instance together", "judge liveness by progress of tokens"),
        try_command="py-spy dump --pid PID of each worker, before ending them",
        reference="sgl-project/sglang#1691, gonka-ai/gonka#1421",
    )
