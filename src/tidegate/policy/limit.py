"""Limits of tenants: requests, input tokens and output tokens a minute, and requests open at once (design.md §4.4).

A request reserves from every budget that applies to it (its tenant's, and its tenant's for that model) or from none,
and holds one `Reservation` until its ticket closes, which settles it once: with the tokens that were really used, or
with nothing where the request never reached an engine. An exhausted budget is refused as not retryable: trying again
before `retry_after_s` is doomed, and a client that does so only makes the flood worse.
"""

from __future__ import annotations

from typing import Final

from tidegate.policy.budget import Budget
from tidegate.spec import BudgetSpec, TenantSpec

REQUESTS: Final = "requests"
INPUT_TOKENS: Final = "input_tokens"
OUTPUT_TOKENS: Final = "output_tokens"
CONCURRENT: Final = "concurrent"


class Shortage:
    """Which limit a request would break. `wait_s` is -1 when no waiting helps."""

    __slots__ = ("allowed", "limit", "wait_s")

    def __init__(self, limit: str, allowed: float, wait_s: float) -> None:
        self.limit = limit
        self.allowed = allowed
        self.wait_s = wait_s


class Standing:
    """How one limit of a tenant stands: what a minute allows, what is left now, and when all of it is back."""

    __slots__ = ("limit", "per_minute", "remaining", "reset_s")

    def __init__(self, limit: str, per_minute: int, remaining: int, reset_s: float) -> None:
        self.limit = limit
        self.per_minute = per_minute
        self.remaining = remaining
        self.reset_s = reset_s


class Account:
    """One set of budgets: a tenant's, or a tenant's for one model. None where there is no limit."""

    __slots__ = ("concurrent", "input", "open", "output", "requests")

    def __init__(self, spec: BudgetSpec) -> None:
        self.requests = _budget(spec.requests, spec.burst_s)
        self.input = _budget(spec.input_tokens, spec.burst_s)
        self.output = _budget(spec.output_tokens, spec.burst_s)
        self.concurrent = spec.concurrent
        self.open = 0

    def shortage(self, input_tokens: int, output_tokens: int, now: float) -> Shortage | None:
        """The limit that a request would break now, or None."""
        if self.concurrent is not None and self.open >= self.concurrent:
            return Shortage(CONCURRENT, self.concurrent, 0.0)
        for name, budget, units in (
            (REQUESTS, self.requests, 1),
            (INPUT_TOKENS, self.input, input_tokens),
            (OUTPUT_TOKENS, self.output, output_tokens),
        ):
            if budget is not None:
                wait_s = budget.wait_s(units, now)
                if wait_s != 0.0:
                    return Shortage(name, budget.burst if wait_s < 0.0 else budget.per_minute, wait_s)
        return None

    def reserve(self, input_tokens: int, output_tokens: int, now: float) -> None:
        """Takes a request's estimate out of every budget."""
        self.open += 1
        if self.requests is not None:
            self.requests.spend(1, now)
        if self.input is not None:
            self.input.spend(input_tokens, now)
        if self.output is not None:
            self.output.spend(output_tokens, now)

    def settle(self, reservation: Reservation, input_tokens: int, output_tokens: int, served: bool) -> None:
        """Corrects the estimate with what was used; a request that was not `served` costs no request either."""
        self.open -= 1
        if self.requests is not None and not served:
            self.requests.settle(1, 0)
        if self.input is not None:
            self.input.settle(reservation.input_tokens, input_tokens)
        if self.output is not None:
            self.output.settle(reservation.output_tokens, output_tokens)

    def standings(self, now: float) -> list[Standing]:
        """Its rates; how many may be open at once is no rate."""
        found: list[Standing] = []
        for name, budget in ((REQUESTS, self.requests), (INPUT_TOKENS, self.input), (OUTPUT_TOKENS, self.output)):
            if budget is not None:
                found.append(Standing(name, int(budget.per_minute), budget.remaining(now), budget.reset_s(now)))
        return found

    def renew(self, spec: BudgetSpec, now: float) -> None:
        """New limits; what was spent stays spent."""
        self.concurrent = spec.concurrent
        self.requests = _renewed(self.requests, spec.requests, spec.burst_s, now)
        self.input = _renewed(self.input, spec.input_tokens, spec.burst_s, now)
        self.output = _renewed(self.output, spec.output_tokens, spec.burst_s, now)


class Reservation:
    """What one request holds. Settle it once."""

    __slots__ = ("_accounts", "input_tokens", "output_tokens")

    def __init__(self, accounts: list[Account], input_tokens: int, output_tokens: int) -> None:
        self._accounts = accounts
        self.input_tokens = input_tokens
        self.output_tokens = output_tokens

    def settle(self, input_tokens: int, output_tokens: int, served: bool) -> None:
        """See `Account.settle`. A second call does nothing."""
        accounts, self._accounts = self._accounts, []
        for account in accounts:
            account.settle(self, input_tokens, output_tokens, served)


class Limiter:
    """The accounts of all tenants. Tenants without limits cost one dictionary look-up a request."""

    __slots__ = ("_by_model", "_by_tenant")

    def __init__(self, tenants: list[TenantSpec]) -> None:
        self._by_tenant: dict[str, Account] = {}
        self._by_model: dict[tuple[str, str], Account] = {}
        self.renew(tenants, 0.0)

    def renew(self, tenants: list[TenantSpec], now: float) -> None:
        """Takes new limits over; counters of tenants and models that stay are kept, others are dropped."""
        by_tenant: dict[str, Account] = {}
        by_model: dict[tuple[str, str], Account] = {}
        for tenant in tenants:
            if tenant.limits.any_set:
                by_tenant[tenant.name] = _account(self._by_tenant.get(tenant.name), tenant.limits, now)
            for part in tenant.model_limits:
                key = (tenant.name, part.model)
                by_model[key] = _account(self._by_model.get(key), part.limits, now)
        self._by_tenant, self._by_model = by_tenant, by_model

    @property
    def any_set(self) -> bool:
        """Whether any tenant has any limit."""
        return bool(self._by_tenant or self._by_model)

    def standings(self, tenant: str, model: str, now: float) -> list[Standing]:
        """How the limits stand that apply to a request; of two for the same thing the one with less left."""
        tightest: dict[str, Standing] = {}
        for account in self.accounts(tenant, model):
            for standing in account.standings(now):
                known = tightest.get(standing.limit)
                if known is None or standing.remaining < known.remaining:
                    tightest[standing.limit] = standing
        return list(tightest.values())

    def accounts(self, tenant: str, model: str) -> list[Account]:
        """Those that apply to a request."""
        found: list[Account] = []
        account = self._by_tenant.get(tenant)
        if account is not None:
            found.append(account)
        if self._by_model:
            account = self._by_model.get((tenant, model))
            if account is not None:
                found.append(account)
        return found


def take(accounts: list[Account], input_tokens: int, output_tokens: int, now: float) -> Reservation | Shortage:
    """Reserves from all accounts, or says which limit forbids it and touches none."""
    for account in accounts:
        shortage = account.shortage(input_tokens, output_tokens, now)
        if shortage is not None:
            return shortage
    for account in accounts:
        account.reserve(input_tokens, output_tokens, now)
    return Reservation(accounts, input_tokens, output_tokens)


def _account(old: Account | None, spec: BudgetSpec, now: float) -> Account:
    if old is None:
        return Account(spec)
    old.renew(spec, now)
    return old


def _budget(per_minute: int | None, burst_s: float) -> Budget | None:
    return None if per_minute is None else Budget(per_minute, max(1.0, per_minute * burst_s / 60.0))


def _renewed(old: Budget | None, per_minute: int | None, burst_s: float, now: float) -> Budget | None:
    if old is None or per_minute is None:
        return _budget(per_minute, burst_s)
    old.resize(per_minute, max(1.0, per_minute * burst_s / 60.0), now)
    return old
