"""Prometheus text, read as far as wanted, and what the engines' metrics mean.

Names that engines renamed resolve through one table per engine kind, newest first. A metric that is absent, or
NaN, is unknown (`None`), never 0. Counts over several engines of one server are summed, fractions averaged,
replicas of one figure (SGLang's tensor-parallel ranks) counted once. Sources: the engines' own output, vLLM 0.33
and 0.24, SGLang 0.5.17 and 0.5.23, llama.cpp b11549.
"""

from __future__ import annotations

import math
from typing import Final


class Sample:
    """One line: labels and value."""

    __slots__ = ("labels", "value")

    def __init__(self, labels: dict[str, str], value: float) -> None:
        self.labels = labels
        self.value = value


class Exposition:
    """A page of metrics: samples by metric name, and how many lines did not parse."""

    __slots__ = ("bad_lines", "samples")

    def __init__(self) -> None:
        self.samples: dict[str, list[Sample]] = {}
        self.bad_lines = 0

    def get(self, name: str) -> list[Sample]:
        """All samples of a metric; empty when it is absent."""
        return self.samples.get(name, [])

    def sum(self, name: str) -> float | None:
        """The metric added up over its labels; None when it is absent."""
        values = [sample.value for sample in self.get(name) if not math.isnan(sample.value)]
        return sum(values) if values else None


class EngineFields:
    """What the policies want to know of an engine, each None when the engine does not say.

    `kv_used_fraction` is 0..1, `capacity_blocks` counts KV blocks of `block_tokens` tokens, `preemptions` is
    cumulative.
    """

    __slots__ = ("block_tokens", "capacity_blocks", "kv_used_fraction", "preemptions", "running", "waiting")

    def __init__(self) -> None:
        self.running: float | None = None
        self.waiting: float | None = None
        self.kv_used_fraction: float | None = None
        self.capacity_blocks: float | None = None
        self.block_tokens: float | None = None
        self.preemptions: float | None = None


_RUNNING: Final = {
    "vllm": ("vllm:num_requests_running",),
    "sglang": ("sglang:num_running_reqs",),
    "llamacpp": ("llamacpp:requests_processing",),
}
_WAITING: Final = {
    "vllm": ("vllm:num_requests_waiting",),
    "sglang": ("sglang:num_queue_reqs",),
    "llamacpp": ("llamacpp:requests_deferred",),
}
_KV_FRACTION: Final = {
    "vllm": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    "sglang": ("sglang:token_usage",),
    "llamacpp": ("llamacpp:kv_cache_usage_ratio",),
}
_PREEMPTIONS: Final = {
    "vllm": ("vllm:num_preemptions_total", "vllm:num_preemptions"),
    "sglang": ("sglang:num_retracted_requests_total", "sglang:num_retracted_reqs_total"),
    "llamacpp": (),
}
_CAPACITY: Final = {
    "vllm": ("vllm:cache_config_info",),
    "sglang": ("sglang:num_pages", "sglang:page_size", "sglang:max_total_num_tokens"),
    "llamacpp": (),
}
KINDS: Final = ("vllm", "sglang", "llamacpp")


def wanted_names(kind: str) -> frozenset[str]:
    """The metric names `engine_sample` reads for an engine kind. Raises KeyError for an unknown kind."""
    tables = (_RUNNING, _WAITING, _KV_FRACTION, _PREEMPTIONS, _CAPACITY)
    return frozenset(name for table in tables for name in table[kind])


def parse(text: str, wanted: frozenset[str] | None = None) -> Exposition:
    """Reads the text format; with `wanted`, every other metric is skipped unparsed.

    Lines that do not parse are counted in `bad_lines` and left out. Linear in the text.
    """
    page = Exposition()
    for line in text.split("\n"):
        if not line or line[0] == "#":
            continue
        name = _name(line)
        if wanted is not None and name not in wanted:
            continue
        _read_line(page, name, line)
    return page


def engine_sample(page: Exposition, kind: str) -> EngineFields:
    """The fields of one engine kind (`vllm`, `sglang`, `llamacpp`). Raises KeyError for an unknown kind."""
    fields = EngineFields()
    fields.running = _total(page, _RUNNING[kind])
    fields.waiting = _total(page, _WAITING[kind])
    fields.kv_used_fraction = _mean(page, _KV_FRACTION[kind])
    fields.preemptions = _total(page, _PREEMPTIONS[kind])
    if kind == "vllm":
        _vllm_capacity(page, fields)
    elif kind == "sglang":
        _sglang_capacity(page, fields)
    return fields


def _name(line: str) -> str:
    brace = line.find("{")
    name = line[:brace] if brace >= 0 else line
    name = name.strip()
    space = name.find(" ")
    return name[:space] if space >= 0 else name


def _read_line(page: Exposition, name: str, line: str) -> None:
    labels: dict[str, str] = {}
    rest_at = line.find(name) + len(name)
    if line[rest_at:].lstrip().startswith("{"):
        rest_at = _read_labels(line, line.index("{", rest_at) + 1, labels)
    value = _value(line[rest_at:]) if name and rest_at >= 0 else None
    if value is None:
        page.bad_lines += 1
        return
    page.samples.setdefault(name, []).append(Sample(labels, value))


def _value(text: str) -> float | None:
    parts = text.split(None, 1)
    if not parts:
        return None
    try:
        return float(parts[0])
    except ValueError:
        return None


def _read_labels(line: str, at: int, labels: dict[str, str]) -> int:
    """Reads `a="b",c="d"}` from `at`; the position after `}`, or -1 when malformed."""
    while True:
        while at < len(line) and line[at] in ", ":
            at += 1
        if at < len(line) and line[at] == "}":
            return at + 1
        equals = line.find("=", at)
        if equals < 0 or line[equals + 1 : equals + 2] != '"':
            return -1
        end = _closing_quote(line, equals + 2)
        if end < 0:
            return -1
        labels[line[at:equals].strip()] = _unescape(line[equals + 2 : end])
        at = end + 1


def _closing_quote(line: str, at: int) -> int:
    while at < len(line):
        if line[at] == "\\":
            at += 1
        elif line[at] == '"':
            return at
        at += 1
    return -1


def _unescape(value: str) -> str:
    if "\\" not in value:
        return value
    parts: list[str] = []
    at = 0
    while at < len(value):
        char = value[at]
        if char == "\\" and at + 1 < len(value):
            at += 1
            char = _ESCAPES.get(value[at], "\\" + value[at])
        parts.append(char)
        at += 1
    return "".join(parts)


_ESCAPES: Final = {"\\": "\\", '"': '"', "n": "\n"}


def escape_label(value: str) -> str:
    """A label value as the text format writes it."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _per_engine(page: Exposition, name: str) -> list[float]:
    """One value per engine: ranks of one engine repeat a figure, and SGLang's priority classes split it."""
    engines: dict[str, float] = {}
    for sample in page.get(name):
        labels = sample.labels
        if math.isnan(sample.value) or labels.get("priority", "") != "":
            continue
        key = f"{labels.get('engine', '')}/{labels.get('dp_rank', '')}/{labels.get('model_name', '')}"
        engines[key] = max(engines.get(key, sample.value), sample.value)
    return list(engines.values())


def _total(page: Exposition, names: tuple[str, ...]) -> float | None:
    for name in names:
        values = _per_engine(page, name)
        if values:
            return sum(values)
    return None


def _mean(page: Exposition, names: tuple[str, ...]) -> float | None:
    for name in names:
        values = _per_engine(page, name)
        if values:
            return sum(values) / len(values)
    return None


def _vllm_capacity(page: Exposition, fields: EngineFields) -> None:
    blocks = 0.0
    for sample in page.get("vllm:cache_config_info"):
        count = _positive(sample.labels.get("num_gpu_blocks"))
        if count is None:
            return
        blocks += count
        fields.block_tokens = _positive(sample.labels.get("block_size"))
    if blocks > 0:
        fields.capacity_blocks = blocks


def _sglang_capacity(page: Exposition, fields: EngineFields) -> None:
    """Pages where the version exposes them, else tokens counted as blocks of one token."""
    pages = _total(page, ("sglang:num_pages",))
    page_tokens = _mean(page, ("sglang:page_size",))
    if pages is not None and page_tokens is not None:
        fields.capacity_blocks, fields.block_tokens = pages, page_tokens
        return
    tokens = _total(page, ("sglang:max_total_num_tokens",))
    if tokens is not None:
        fields.capacity_blocks, fields.block_tokens = tokens, 1.0


def _positive(text: str | None) -> float | None:
    """A label's number; None for absent, `None` and nonsense."""
    try:
        value = float(text) if text is not None else 0.0
    except ValueError:
        return None
    return value if 0 < value < math.inf else None
