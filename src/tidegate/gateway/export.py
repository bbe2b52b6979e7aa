"""The gateway's state as Prometheus metrics and as the admin port's health document, made when somebody asks.

Every name begins with `tidegate_`; labels are `model`, `tenant`, `instance`, `outcome` and `state`, all from the spec
or from closed sets. A figure an engine does not report is left out, never 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from tidegate.errors import Outcome
from tidegate.observe.buckets import Buckets
from tidegate.policy import breaker, lifecycle
from tidegate.policy.ledger import Instance

if TYPE_CHECKING:
    from tidegate.gateway.shell import Gateway

HISTOGRAMS = (
    ("ttft", "tidegate_ttft_seconds", "From the request's arrival to its first token on the way to the client."),
    ("gap", "tidegate_gap_seconds", "Between consecutive token-carrying chunks of a stream."),
    ("duration", "tidegate_request_seconds", "From the request's arrival to its end, whatever the outcome."),
    ("queued", "tidegate_queue_seconds", "Waited for admission."),
)


class GatewayCollector(Collector):
    """Reads one gateway's plain counters at scrape time."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def collect(self) -> Iterator[Metric]:
        yield from self._requests()
        yield from self._histograms()
        yield from self._tokens()
        yield from self._server()
        yield from self._instances()

    def _requests(self) -> Iterator[Metric]:
        gateway = self._gateway
        requests = CounterMetricFamily("tidegate_requests", "Requests by how they ended.", labels=["model", "outcome"])
        retries = CounterMetricFamily("tidegate_retries", "Second attempts before the first byte.", labels=["model"])
        for model, meters in gateway.meters.by_model.items():
            for outcome in Outcome:
                requests.add_metric([model, outcome.value], meters.count_of(outcome))
            retries.add_metric([model], meters.retries)
        for outcome, count in gateway.meters.unopened.items():
            if count:
                requests.add_metric(["", outcome.value], count)
        yield requests
        yield retries
        yield GaugeMetricFamily("tidegate_requests_in_flight", "Attempts at engines now.", gateway.gate.in_flight)
        yield GaugeMetricFamily("tidegate_requests_queued", "Requests waiting for admission now.", gateway.gate.queued)

    def _histograms(self) -> Iterator[Metric]:
        for attribute, name, text in HISTOGRAMS:
            family = HistogramMetricFamily(name, text, labels=["model"])
            for model, meters in self._gateway.meters.by_model.items():
                buckets: Buckets = getattr(meters, attribute)
                family.add_metric([model], buckets.cumulative(), buckets.total_s)
            yield family

    def _tokens(self) -> Iterator[Metric]:
        tokens = CounterMetricFamily("tidegate_tokens", "Tokens of delivered answers.", labels=["model", "kind"])
        for model, meters in self._gateway.meters.by_model.items():
            tokens.add_metric([model, "prompt"], meters.prompt_tokens)
            tokens.add_metric([model, "output"], meters.output_tokens)
        by_tenant = CounterMetricFamily("tidegate_tenant_tokens", "The same by tenant.", labels=["tenant", "kind"])
        for tenant, (_, prompt, output) in self._gateway.meters.tenant_tokens.items():
            by_tenant.add_metric([tenant, "prompt"], prompt)
            by_tenant.add_metric([tenant, "output"], output)
        yield tokens
        yield by_tenant

    def _server(self) -> Iterator[Metric]:
        statistics = self._gateway.server.statistics
        meters = self._gateway.meters
        counters = (
            ("connections", "Client connections accepted.", statistics.accepted),
            ("connections_turned_away", "Connections over the limit.", statistics.turned_away),
            ("malformed_requests", "Refused before they were understood.", statistics.malformed),
            ("defects", "Requests Tidegate itself failed on.", statistics.defects),
            ("log_lines_lost", "Access log lines not written.", self._gateway.access_log.dropped),
        )
        for name, text, value in counters:
            yield CounterMetricFamily("tidegate_" + name, text, value)
        yield GaugeMetricFamily("tidegate_connections_open", "Client connections now.", statistics.open)
        lag_s, meters.tick_lag_max_s = meters.tick_lag_max_s, 0.0
        yield GaugeMetricFamily(
            "tidegate_loop_lag_seconds_max", "Longest wait of a timer since the last scrape.", lag_s
        )

    def _instances(self) -> Iterator[Metric]:
        gateway = self._gateway
        now = gateway.now()
        names = ["instance", "model"]
        state = GaugeMetricFamily("tidegate_instance_state", "1 for the state it is in.", labels=[*names, "state"])
        figures = {
            "in_flight": GaugeMetricFamily("tidegate_instance_in_flight", "Our attempts there now.", labels=names),
            "active_blocks": GaugeMetricFamily(
                "tidegate_instance_active_blocks", "KV blocks in use or spoken for.", labels=names
            ),
            "prefill_tokens": GaugeMetricFamily(
                "tidegate_instance_prefill_tokens", "Our prompt tokens there without a first token.", labels=names
            ),
            "running": GaugeMetricFamily("tidegate_instance_engine_running", "As last scraped.", labels=names),
            "waiting": GaugeMetricFamily("tidegate_instance_engine_waiting", "As last scraped.", labels=names),
            "kv_used": GaugeMetricFamily("tidegate_instance_kv_used_ratio", "As last scraped.", labels=names),
            "age": GaugeMetricFamily("tidegate_instance_sample_age_seconds", "Since the last scrape.", labels=names),
            "breaker_open": GaugeMetricFamily(
                "tidegate_instance_breaker_open", "1 while its fault breaker is open or being tried.", labels=names
            ),
            "connections": GaugeMetricFamily(
                "tidegate_instance_connections", "Open connections to it, idle ones included.", labels=names
            ),
        }
        for instance, upstream in gateway.upstreams.items():
            labels = [instance.name, instance.model]
            for number, name in enumerate(lifecycle.STATE_NAMES):
                state.add_metric([*labels, name], float(instance.state == number))
            values = instance_figures(instance, now)
            values["connections"] = float(upstream.pool.open_connections)
            for key, value in values.items():
                if value is not None:
                    figures[key].add_metric(labels, value)
        yield state
        yield from figures.values()


def instance_figures(instance: Instance, now: float) -> dict[str, float | None]:
    """What is known of an instance; None where it is not."""
    sample = instance.sample
    return {
        "in_flight": float(instance.in_flight),
        "active_blocks": instance.active_blocks(now),
        "prefill_tokens": float(instance.prefill_tokens),
        "breaker_open": float(instance.breaker.state != breaker.CLOSED),
        "running": sample.running if sample is not None else None,
        "waiting": sample.waiting if sample is not None else None,
        "kv_used": sample.kv_used_fraction if sample is not None else None,
        "age": now - instance.sampled_s if sample is not None else None,
    }


def served_models(gateway: Gateway) -> dict[str, bool]:
    """Which models have a ready instance."""
    return {model: any(i.ready for i in pool.instances) for model, pool in gateway.gate.pools.items()}


def status_of(gateway: Gateway) -> str:
    """`ok`, `no_instance` (a model has none that is ready) or `draining`."""
    if gateway.server.closing:
        return "draining"
    return "ok" if all(served_models(gateway).values()) else "no_instance"


def health(gateway: Gateway) -> tuple[int, dict[str, object]]:
    """Status code and document of the admin port's `/health`: 200 while every model has a ready instance."""
    now = gateway.now()
    served = served_models(gateway)
    status = status_of(gateway)
    instances = [
        {
            "name": i.name,
            "url": i.url,
            "model": i.model,
            "state": lifecycle.STATE_NAMES[i.state],
            **{key: value for key, value in instance_figures(i, now).items() if value is not None},
        }
        for i in gateway.gate.instances
    ]
    document: dict[str, object] = {
        "status": status,
        "models": served,
        "in_flight": gateway.gate.in_flight,
        "queued": gateway.gate.queued,
        "instances": instances,
    }
    return (200 if status == "ok" else 503), document
