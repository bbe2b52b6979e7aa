"""What an operator writes (`tidegate.yaml`) and, later, what gets frozen (`tidegate.lock`).

In: YAML text. Out: immutable, fully defaulted `ClusterSpec` values whose fields carry base units in their names
(`_s`, `_bytes`, `_tokens`). Unknown keys, wrong types and impossible values never get past `load_spec`; nobody
below re-checks. Not here: anything that acts on a spec.
"""

from tidegate.spec.cluster import (
    AdmissionSpec,
    BreakerSpec,
    BudgetSpec,
    ClusterSpec,
    CostSpec,
    GatewaySpec,
    InstanceSpec,
    LimitsSpec,
    ModelBudgetSpec,
    PoolSpec,
    QueueSpec,
    RetrySpec,
    SloSpec,
    TenantSpec,
    TimeoutsSpec,
)
from tidegate.spec.load import load_spec, parse_spec
from tidegate.spec.problem import Problem, SpecError
from tidegate.spec.profile import EngineProfile
from tidegate.spec.traffic import LengthSpec, PhaseSpec, TraceSpec, TrafficSpec

__all__ = [
    "AdmissionSpec",
    "BreakerSpec",
    "BudgetSpec",
    "ClusterSpec",
    "CostSpec",
    "EngineProfile",
    "GatewaySpec",
    "InstanceSpec",
    "LengthSpec",
    "LimitsSpec",
    "ModelBudgetSpec",
    "PhaseSpec",
    "PoolSpec",
    "Problem",
    "QueueSpec",
    "RetrySpec",
    "SloSpec",
    "SpecError",
    "TenantSpec",
    "TimeoutsSpec",
    "TraceSpec",
    "TrafficSpec",
    "load_spec",
    "parse_spec",
]
