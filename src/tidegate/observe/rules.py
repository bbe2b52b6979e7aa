"""Prometheus rules as code: what is recorded, and what wakes somebody up.

In: a cluster document, which says what was promised (the SLO), how long a queue may get, how full a KV cache. Out:
a rule file. Budget burn is watched over two windows at once, long enough to matter and short enough to be over when
the trouble is (Google, The Site Reliability Workbook, chapter 5). Every alert names its page in the handbook.
"""

from __future__ import annotations

import re
from typing import Any, Final

import yaml

from tidegate.errors import Outcome
from tidegate.observe.buckets import BOUNDS_S
from tidegate.observe.enginequeries import recorded
from tidegate.spec import ClusterSpec

FILE: Final = "prometheus/tidegate.rules.yaml"
OBJECTIVE: Final = 0.99
"""Share of requests (and of gaps) that must be inside: the SLO's figures are 99th percentiles."""
WINDOWS: Final = ("5m", "30m", "1h", "2h", "6h", "1d", "3d")
BURNS: Final = (
    # severity, times the budget, long window, short window, how long it must last
    ("page", 14.4, "1h", "5m", "2m"),
    ("page", 6.0, "6h", "30m", "15m"),
    ("ticket", 3.0, "1d", "2h", "1h"),
    ("ticket", 1.0, "3d", "6h", "3h"),
)
OURS: Final = (
    Outcome.QUEUE_FULL,
    Outcome.QUEUE_TIMEOUT,
    Outcome.OVERLOADED,
    Outcome.NO_INSTANCE,
)
"""Refusals that are the cluster's fault; a tenant's spent budget and a bad request are not."""
CLIENTS: Final = (
    Outcome.CLIENT_CANCELLED,
    Outcome.BAD_REQUEST,
    Outcome.UNAUTHORIZED,
    Outcome.UNKNOWN_MODEL,
    Outcome.BODY_TOO_LARGE,
    Outcome.ENGINE_REFUSED,
    Outcome.LIMITED,
)
"""Ends that say nothing about the cluster."""
ERRORS: Final = tuple(outcome for outcome in Outcome if outcome.group == "error")
HANDBOOK: Final = "docs/guides/see.md"


def rule_file(spec: ClusterSpec) -> dict[str, str]:
    """The rule file, by name."""
    head = "# Rendered by Tidegate; name this file under rule_files.\n"
    return {FILE: head + yaml.safe_dump({"groups": groups(spec)}, sort_keys=False, width=10_000)}


def groups(spec: ClusterSpec) -> list[dict[str, Any]]:
    """Recording and alerting rules."""
    return [
        {"name": "tidegate-slo", "rules": [rule for window in WINDOWS for rule in _bad_shares(spec, window)]},
        {"name": "tidegate-requests", "rules": _request_shares()},
        {"name": "tidegate-engines", "rules": [_record(name, expr) for name, expr in recorded().items()]},
        {"name": "tidegate-slo-alerts", "rules": [_burn(number) for number in range(len(BURNS))]},
        {"name": "tidegate-alerts", "rules": [*_flood_alerts(spec), *_instance_alerts(spec), *_own_alerts()]},
    ]


def bound_within(limit_s: float) -> str:
    """The largest histogram bound inside a limit: what lies beyond it counts as missed, so that the error is on the
    safe side."""
    within = [bound for bound in BOUNDS_S if bound <= limit_s * (1 + 1e-9)]
    return f"{within[-1] if within else BOUNDS_S[0]:g}"


def outcomes(chosen: tuple[Outcome, ...]) -> str:
    """A label matcher's value for some outcomes."""
    return "|".join(outcome.value for outcome in chosen)


def _record(name: str, expr: str, **labels: str) -> dict[str, Any]:
    rule: dict[str, Any] = {"record": name, "expr": expr}
    return {**rule, "labels": labels} if labels else rule


def _bad_shares(spec: ClusterSpec, window: str) -> list[dict[str, Any]]:
    """Share of bad events by model, one series per promise. No traffic gives no number, and no alarm."""
    name = f"model:tidegate_slo_bad:ratio_rate{window}"
    failed = f'tidegate_requests_total{{outcome=~"{outcomes((*OURS, *ERRORS))}"}}'
    counted = f'tidegate_requests_total{{outcome!~"{outcomes(CLIENTS)}"}}'
    return [
        _record(name, _missed("tidegate_ttft_seconds", spec.slo.ttft_s, window), slo="ttft"),
        _record(name, _missed("tidegate_gap_seconds", spec.slo.itl_s, window), slo="itl"),
        _record(name, f"{_rate(failed, window)} / ({_rate(counted, window)} > 0)", slo="answered"),
    ]


def _missed(histogram: str, limit_s: float, window: str) -> str:
    inside = f'{histogram}_bucket{{le="{bound_within(limit_s)}"}}'
    return f"1 - {_rate(inside, window)} / ({_rate(histogram + '_count', window)} > 0)"


def _rate(selector: str, window: str) -> str:
    return f"sum by (model) (rate({selector}[{window}]))"


def _request_shares() -> list[dict[str, Any]]:
    total = _rate("tidegate_requests_total", "5m")
    return [
        _record("model:tidegate_requests:rate5m", total),
        *(
            _record(f"model:tidegate_requests_{name}:ratio_rate5m", f"{_some(chosen)} / ({total} > 0)")
            for name, chosen in (("refused", OURS), ("failed", ERRORS), ("limited", (Outcome.LIMITED,)))
        ),
    ]


def _some(chosen: tuple[Outcome, ...]) -> str:
    return _rate(f'tidegate_requests_total{{outcome=~"{outcomes(chosen)}"}}', "5m")


def _alert(name: str, expr: str, lasts: str, severity: str, summary: str, description: str) -> dict[str, Any]:
    return {
        "alert": name,
        "expr": expr,
        "for": lasts,
        "labels": {"severity": severity},
        "annotations": {
            "summary": summary,
            "description": description,
            "handbook": f"{HANDBOOK}#{name.lower()}",
        },
    }


def _burn(number: int) -> dict[str, Any]:
    severity, factor, long, short, lasts = BURNS[number]
    limit = factor * (1 - OBJECTIVE)
    both = " and ".join(f"model:tidegate_slo_bad:ratio_rate{window} > {limit:.4g}" for window in (long, short))
    rule = _alert(
        "TidegateSloBurn",
        both,
        lasts,
        severity,
        "{{ $labels.model }} misses its {{ $labels.slo }} promise",
        f"{{{{ $value | humanizePercentage }}}} over {long} are outside: {factor:g} times what the objective allows.",
    )
    rule["labels"]["window"] = long
    return rule


def _flood_alerts(spec: ClusterSpec) -> list[dict[str, Any]]:
    queue = spec.gateway.queue.max_requests
    return [
        _alert(
            "TidegateQueueFilling", f"tidegate_requests_queued > {max(1.0, 0.8 * queue):g}", "1m", "page",
            "The queue is nearly full", f"{{{{ $value }}}} of {queue} places are taken; then requests are refused.",
        ),
        _alert(
            "TidegateRefusing", "model:tidegate_requests_refused:ratio_rate5m > 0.05", "2m", "page",
            "{{ $labels.model }} refuses requests", "{{ $value | humanizePercentage }} are refused for want of room.",
        ),
        _alert(
            "TidegateFailing", "model:tidegate_requests_failed:ratio_rate5m > 0.01", "2m", "page",
            "{{ $labels.model }} fails requests", "{{ $value | humanizePercentage }} end in an error.",
        ),
    ]  # fmt: skip


def _instance_alerts(spec: ClusterSpec) -> list[dict[str, Any]]:
    stale_s = max(5.0, 4 * spec.gateway.scrape_interval_s)
    # llama.cpp does not say; every other kind that does not is a blind spot.
    silent = "|".join(_literal(pool.model) for pool in spec.pools if pool.engine.kind == "llamacpp")
    known = f'tidegate_instance_state{{state="ready",model!~"{silent}"}}' if silent else _state("ready")
    where = "{{ $labels.instance }} ({{ $labels.model }})"
    return [
        _alert(
            "TidegateNoInstance", f"sum by (model) ({_state('ready')}) == 0", "15s", "page",
            "Nothing serves {{ $labels.model }}", "Every request for it is refused with 503.",
        ),
        _alert(
            "TidegateInstanceEjected", f"{_state('ejected')} == 1", "30s", "ticket",
            f"{where} is ejected", "It gets no work; nothing listens there.",
        ),
        _alert(
            "TidegateBreakerOpen", "min_over_time(tidegate_instance_breaker_open[1m]) == 1", "1m", "ticket",
            f"{where} fails its requests", "Its fault breaker is open: it gets one trial at a time.",
        ),
        _alert(
            "TidegateStaleScrape",
            f"tidegate_instance_sample_age_seconds > {stale_s:g} and on (instance, model) ({_state('ready')} == 1)",
            "30s", "ticket",
            f"{where} has no fresh metrics", "The last are {{ $value | humanizeDuration }} old; its load is a guess.",
        ),
        _alert(
            "TidegateMetricUnknown",
            f"{known} == 1 unless on (instance, model) tidegate_instance_kv_used_ratio", "1m", "ticket",
            f"{where} does not say how full its KV cache is",
            "Its metrics are off, or a release renamed them. Unknown is not empty.",
        ),
        _alert(
            "TidegateKvHigh", f"tidegate_instance_kv_used_ratio > {spec.gateway.admission.kv_high:g}", "2m", "ticket",
            f"{where} is nearly out of KV blocks", "{{ $value | humanizePercentage }} are in use; preemptions follow.",
        ),
        _alert(
            "TidegatePreemptions", "server:tidegate_engine_preemptions:rate5m > 0.1", "2m", "ticket",
            "{{ $labels.instance }} preempts sequences",
            "{{ printf \"%.2f\" $value }} a second: prompts are computed twice and gaps grow.",
        ),
    ]  # fmt: skip


def _own_alerts() -> list[dict[str, Any]]:
    return [
        _alert(
            "TidegateDown", 'up{job="tidegate-gateway"} == 0', "30s", "page",
            "The gateway's admin port does not answer", "Look at the process and its last log lines.",
        ),
        _alert(
            "TidegateDefect",
            'increase(tidegate_requests_total{outcome="internal_error"}[15m]) > 0', "0s", "ticket",
            "Tidegate failed on a request by its own fault", "This is a bug: report it with the gateway's log.",
        ),
        _alert(
            "TidegateLoopLag", "max_over_time(tidegate_loop_lag_seconds_max[2m]) > 0.25", "1m", "ticket",
            "The gateway's event loop is late", "{{ $value | humanizeDuration }}: it lacks CPU; TTFT and gaps suffer.",
        ),
    ]  # fmt: skip


def _literal(text: str) -> str:
    """As a pattern inside a PromQL string."""
    return re.escape(text).replace("\\", "\\\\")


def _state(name: str) -> str:
    return f'tidegate_instance_state{{state="{name}"}}'
