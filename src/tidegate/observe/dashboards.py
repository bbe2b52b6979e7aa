"""The boards: fleet, SLO, instance, tenant. Grafana JSON as code.

In: a cluster document for its promises. Out: files for Grafana's provisioning. Every query is for a metric the
gateway exports, or for a series that `rules` records from whatever the engines call theirs.
"""

from __future__ import annotations

import json
from typing import Final

from tidegate.observe.grafana import Json, Query, board, row, stat, timeseries, variable
from tidegate.observe.rules import OBJECTIVE, WINDOWS
from tidegate.spec import ClusterSpec

FOLDER: Final = "grafana/dashboards"
PROVIDER: Final = """# Rendered by Tidegate: lies under provisioning/dashboards; the boards lie where `path` says.
apiVersion: 1
providers:
  - name: tidegate
    folder: Tidegate
    type: file
    options:
      path: /var/lib/grafana/dashboards/tidegate
"""
MODEL: Final = 'model=~"$model"'
PLACE: Final = 'model=~"$model",instance=~"$instance"'
MODELS: Final = variable("model", "Model", "label_values(tidegate_ttft_seconds_count, model)")
INSTANCES: Final = variable(
    "instance", "Instance", 'label_values(tidegate_instance_in_flight{model=~"$model"}, instance)'
)
TENANTS: Final = variable("tenant", "Tenant", "label_values(tidegate_tenant_tokens_total, tenant)")
BUDGET_DAYS: Final = WINDOWS[-1]


def dashboard_files(spec: ClusterSpec) -> dict[str, str]:
    """The boards and Grafana's provider file, by name."""
    files = {f"{FOLDER}/{one['uid']}.json": json.dumps(one, indent=1) + "\n" for one in boards(spec)}
    return {**files, "grafana/provisioning/dashboards/tidegate.yaml": PROVIDER}


def boards(spec: ClusterSpec) -> list[Json]:
    """All of them."""
    return [fleet(spec), slo(spec), instance(spec), tenant()]


def rate(metric: str, by: str = "model", where: str = MODEL) -> str:
    """A counter per second, over whatever window fits the graph."""
    return f"sum by ({by}) (rate({metric}{{{where}}}[$__rate_interval]))"


def quantiles(metric: str) -> list[Query]:
    """P50, P95 and P99 of one of the gateway's histograms."""
    return [
        Query(f"histogram_quantile({q}, {rate(metric + '_bucket', 'le')})", f"P{q * 100:g}") for q in (0.5, 0.95, 0.99)
    ]


def fleet(spec: ClusterSpec) -> Json:
    """What comes in, what happens to it, what it costs."""
    ttft_s, itl_s = spec.slo.ttft_s, spec.slo.itl_s
    ready = f'sum(tidegate_instance_state{{state="ready",{MODEL}}})'
    panels = [
        stat("Requests", "reqps", Query(f"sum({rate('tidegate_requests_total')})")),
        stat("TTFT P99", "s", quantiles("tidegate_ttft_seconds")[2], limit=ttft_s),
        stat("Gap P99", "s", quantiles("tidegate_gap_seconds")[2], limit=itl_s),
        stat("Refused", "percentunit", Query(f"max(model:tidegate_requests_refused:ratio_rate5m{{{MODEL}}})"),
             limit=0.05),
        stat("Queued", "short", Query("sum(tidegate_requests_queued)"), limit=0.8 * spec.gateway.queue.max_requests),
        stat("Instances ready", "short", Query(ready), limit=1, low=True),
        row("Traffic"),
        timeseries("Requests by outcome", "reqps", [Query(rate("tidegate_requests_total", "outcome"), "{{outcome}}")],
                   stack=True),
        timeseries("Tokens", "short", [Query(rate("tidegate_tokens_total", "kind"), "{{kind}} tokens/s")]),
        row("Promises"),
        timeseries("Time to first token", "s", quantiles("tidegate_ttft_seconds"), limit=ttft_s),
        timeseries("Gap between tokens", "s", quantiles("tidegate_gap_seconds"), limit=itl_s),
        row("The gate"),
        timeseries("Queue", "short", [Query("sum(tidegate_requests_queued)", "waiting"),
                                      Query("sum(tidegate_requests_in_flight)", "in flight")]),
        timeseries("Wait for admission", "s", quantiles("tidegate_queue_seconds")),
        timeseries("Request duration", "s", quantiles("tidegate_request_seconds")),
        timeseries("Second attempts", "reqps", [Query(rate("tidegate_retries_total"), "{{model}}")]),
        row("Instances"),
        timeseries("KV cache used", "percentunit",
                   [Query(f"max(tidegate_instance_kv_used_ratio{{{MODEL}}})", "fullest"),
                    Query(f"avg(tidegate_instance_kv_used_ratio{{{MODEL}}})", "mean")],
                   "Shares are averaged, never summed.", top=1, limit=spec.gateway.admission.kv_high),
        timeseries("Instances by state", "short",
                   [Query(f"sum by (state) (tidegate_instance_state{{{MODEL}}})", "{{state}}")], stack=True),
        timeseries("Event loop lag", "s", [Query("max(tidegate_loop_lag_seconds_max)", "longest")]),
        timeseries("Client connections", "short", [Query("sum(tidegate_connections_open)", "open")]),
    ]  # fmt: skip
    return board("tidegate-fleet", "Tidegate / Fleet", "Everything behind the gate, at a glance.", [MODELS], panels)


def slo(spec: ClusterSpec) -> Json:
    """How much of what was promised is kept, and how fast the budget goes."""
    budget = 1 - OBJECTIVE
    promises = {
        "ttft": f"First token within {spec.slo.ttft_s:g} s",
        "itl": f"Gaps within {spec.slo.itl_s:g} s",
        "answered": "Neither refused for want of room nor failed",
    }
    panels = []
    for name, title in promises.items():
        where = f'slo="{name}",{MODEL}'
        long = f"model:tidegate_slo_bad:ratio_rate{BUDGET_DAYS}{{{where}}}"
        panels += [
            row(title),
            stat("Kept, last hour", "percentunit", Query(f"min(1 - model:tidegate_slo_bad:ratio_rate1h{{{where}}})"),
                 limit=OBJECTIVE, low=True, width=6),
            stat(f"Budget left of {BUDGET_DAYS}", "percentunit", Query(f"min(1 - {long} / {budget:.4g})"), limit=0,
                 low=True, width=6),
            timeseries("Burn: times the budget", "short",
                       [Query(f"model:tidegate_slo_bad:ratio_rate{window}{{{where}}} / {budget:.4g}",
                              "{{model}} " + window) for window in WINDOWS],
                       "1 uses the budget up exactly; 14.4 over an hour pages somebody.", limit=1),
        ]  # fmt: skip
    return board("tidegate-slo", "Tidegate / SLO", f"Objective: {OBJECTIVE:.0%}.", [MODELS], panels)


def instance(spec: ClusterSpec) -> Json:
    """One engine server: what the gateway knows, what it says itself."""

    def known(title: str, unit: str, name: str, text: str = "", **shape: object) -> Json:
        query = Query(f"tidegate_instance_{name}{{{PLACE}}}", "{{instance}}")
        return timeseries(title, unit, [query], text, width=8, **shape)

    panels = [
        row("As the gateway sees it"),
        known("KV cache used", "percentunit", "kv_used_ratio", top=1, limit=spec.gateway.admission.kv_high),
        known("KV blocks in use or spoken for", "short", "active_blocks"),
        known("In flight", "short", "in_flight"),
        known("Prompt tokens without a first token", "short", "prefill_tokens"),
        known("Running in the engine", "short", "engine_running"),
        known("Waiting in the engine", "short", "engine_waiting"),
        known("Age of its metrics", "s", "sample_age_seconds", "Old ones fade out of routing decisions."),
        known("Connections", "short", "connections"),
        known("Fault breaker open", "short", "breaker_open", "1 while it gets one trial at a time.", top=1),
        timeseries("State", "short", [Query(f'tidegate_instance_state{{{PLACE}}} == 1', "{{instance}} {{state}}")],
                   width=8),
        row("As the engine says, whatever it calls its metrics"),
        *(_engine(title, unit, name) for title, unit, name in (
            ("Running", "short", "running:sum"),
            ("Waiting", "short", "waiting:sum"),
            ("KV cache used", "percentunit", "kv_used:avg"),
            ("Preemptions per second", "short", "preemptions:rate5m"),
            ("Prompt tokens per second", "short", "prompt_tokens:rate5m"),
            ("Output tokens per second", "short", "output_tokens:rate5m"),
            ("TTFT P99", "s", "ttft_seconds:p99_5m"),
            ("Gap P99", "s", "gap_seconds:p99_5m"),
            ("Queue time P99", "s", "queue_seconds:p99_5m"),
        )),
    ]  # fmt: skip
    text = "One engine server, or several side by side."
    return board("tidegate-instance", "Tidegate / Instance", text, [MODELS, INSTANCES], panels)


def _engine(title: str, unit: str, name: str) -> Json:
    query = Query(f"server:tidegate_engine_{name}", "{{instance_name}} {{instance}}")
    return timeseries(title, unit, [query], width=8)


def tenant() -> Json:
    """Who uses it."""
    tokens = "tidegate_tenant_tokens_total"
    each = 'tenant=~"$tenant"'
    panels = [
        timeseries(f"{word} tokens per second", "short",
                   [Query(rate(tokens, "tenant", f'kind="{kind}",{each}'), "{{tenant}}")], stack=True)
        for kind, word in (("prompt", "Prompt"), ("output", "Output"))
    ]  # fmt: skip
    share = f"{rate(tokens, 'tenant', each)} / ignoring(tenant) group_left sum(rate({tokens}[$__rate_interval]))"
    panels.append(timeseries("Share of all tokens", "percentunit", [Query(share, "{{tenant}}")], width=24, top=1))
    return board("tidegate-tenant", "Tidegate / Tenants", "Who uses the cluster.", [TENANTS], panels)
