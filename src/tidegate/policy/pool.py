"""One pool: everything that serves one model, and what was learned about it."""

from __future__ import annotations

from tidegate.policy.admit import Admission
from tidegate.policy.estimate import Estimator
from tidegate.policy.ledger import Instance
from tidegate.policy.line import WaitingLine
from tidegate.policy.pace import DrainRate
from tidegate.policy.retry import RetryBudget
from tidegate.policy.route import Router
from tidegate.spec import ClusterSpec, PoolSpec


class Pool:
    """Everything that serves one model."""

    __slots__ = (
        "admission", "drain_rate", "estimator", "instances", "line", "long_prompt_tokens", "max_ejected",
        "model", "retries", "router",
    )  # fmt: skip

    def __init__(self, spec: PoolSpec, cluster: ClusterSpec) -> None:
        gateway = cluster.gateway
        self.model = spec.model
        self.instances = [
            Instance(
                i.name or i.url.removeprefix("http://").rstrip("/"),
                i.url,
                spec.model,
                spec.engine.kind,
                gateway.breaker,
            )
            for i in spec.instances
        ]
        self.router = Router(self.instances)
        self.admission = Admission(gateway.admission, cluster.slo, gateway.queue.max_wait_s)
        weights = {tenant.name: tenant.weight for tenant in cluster.tenants}
        self.line = WaitingLine(gateway.queue, weights, gateway.admission.long_share)
        self.long_prompt_tokens = gateway.admission.long_prompt_tokens
        self.retries = RetryBudget(gateway.retry.budget)
        self.estimator = Estimator(gateway.bytes_per_token, float(gateway.expected_output_tokens))
        self.drain_rate = DrainRate()
        self.max_ejected = gateway.breaker.max_ejected
