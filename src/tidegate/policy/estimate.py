"""Token estimates, learned from the `usage` of past answers, per model and tenant (design.md §4.3).

Bytes per token follow an exponentially weighted mean; answer lengths follow a running quantile (`OUTPUT_QUANTILE`),
because a claim on KV blocks that is too small costs a preemption and one that is too large only a little room. A
tenant's own estimates start from its model's and count once it has had `TRUSTED_AFTER` answers: Chinese text, code
and JSON have other bytes per token than English prose, and one tenant's answers are short where another's are long.
Until the first usage arrives the configured guesses stand. Estimated and settled tokens are both totalled, so that
the error shows.

The quantile moves by stochastic approximation: up by `q` of a step when an answer was longer, down by `1 - q` when it
was shorter, with steps in proportion to its value (Robbins and Monro, 1951).
"""

from __future__ import annotations

from typing import Final

from tidegate.policy.ticket import Head, Usage

WEIGHT: Final = 0.02
BYTES_PER_TOKEN_MIN: Final = 0.25
BYTES_PER_TOKEN_MAX: Final = 64.0
OUTPUT_QUANTILE: Final = 0.7
OUTPUT_STEP: Final = 0.05
TRUSTED_AFTER: Final = 16


class Learned:
    """What was learned of one model, or of one tenant's requests to it."""

    __slots__ = ("answers", "bytes_per_token", "output_tokens")

    def __init__(self, bytes_per_token: float, output_tokens: float) -> None:
        self.bytes_per_token = bytes_per_token
        self.output_tokens = output_tokens
        self.answers = 0

    def learn(self, prompt_bytes: int, usage: Usage) -> None:
        """Takes a finished answer in."""
        self.answers += 1
        if prompt_bytes > 0:
            seen = prompt_bytes / usage.prompt_tokens
            seen = min(max(seen, BYTES_PER_TOKEN_MIN), BYTES_PER_TOKEN_MAX)
            self.bytes_per_token += WEIGHT * (seen - self.bytes_per_token)
        step = max(1.0, OUTPUT_STEP * self.output_tokens)
        if usage.output_tokens > self.output_tokens:
            self.output_tokens += step * OUTPUT_QUANTILE
        else:
            self.output_tokens = max(1.0, self.output_tokens - step * (1.0 - OUTPUT_QUANTILE))


class Estimator:
    """Estimates of one model. One entry a tenant: tenants come from the spec, so there are no more than it names."""

    __slots__ = ("_tenants", "estimated_tokens", "model", "settled_tokens")

    def __init__(self, bytes_per_token: float, output_tokens: float) -> None:
        self.model = Learned(bytes_per_token, output_tokens)
        self.estimated_tokens = 0
        self.settled_tokens = 0
        self._tenants: dict[str, Learned] = {}

    def of(self, tenant: str) -> Learned:
        """What a tenant's requests are estimated by."""
        own = self._tenants.get(tenant)
        return self.model if own is None or own.answers < TRUSTED_AFTER else own

    def prompt_tokens(self, head: Head) -> int:
        """Prompt tokens: exact if the head has them, else from its bytes; at least 1."""
        if head.prompt_tokens >= 0:
            return head.prompt_tokens
        return max(1, int(head.prompt_bytes / self.of(head.tenant).bytes_per_token))

    def expected_output_tokens(self, head: Head) -> int:
        """Answer tokens that most answers stay below, at most what the client allows."""
        expected = max(1, int(self.of(head.tenant).output_tokens))
        return expected if head.max_tokens < 0 else min(expected, head.max_tokens)

    def learn(self, head: Head, estimated_prompt_tokens: int, usage: Usage) -> None:
        """Takes a finished answer in; usage that was counted rather than told teaches nothing."""
        if not usage.known or usage.prompt_tokens <= 0:
            return
        self.estimated_tokens += estimated_prompt_tokens
        self.settled_tokens += usage.prompt_tokens
        own = self._tenants.get(head.tenant)
        if own is None:
            own = self._tenants[head.tenant] = Learned(self.model.bytes_per_token, self.model.output_tokens)
        own.learn(head.prompt_bytes, usage)
        self.model.learn(head.prompt_bytes, usage)
