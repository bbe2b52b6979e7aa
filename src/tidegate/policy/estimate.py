"""Token estimates, learned from the `usage` of past answers, per model (design.md §4.3).

Bytes per token and answer length are exponentially weighted means over finished requests; until the first usage
arrives the configured guesses stand. Estimated and settled tokens are both totalled, so that the error shows.
"""

from __future__ import annotations

from typing import Final

from tidegate.policy.ticket import Head, Usage

WEIGHT: Final = 0.02
BYTES_PER_TOKEN_MIN: Final = 0.25
BYTES_PER_TOKEN_MAX: Final = 64.0


class Estimator:
    """Estimates of one model."""

    __slots__ = ("bytes_per_token", "estimated_tokens", "output_tokens", "settled_tokens")

    def __init__(self, bytes_per_token: float, output_tokens: float) -> None:
        self.bytes_per_token = bytes_per_token
        self.output_tokens = output_tokens
        self.estimated_tokens = 0
        self.settled_tokens = 0

    def prompt_tokens(self, head: Head) -> int:
        """Prompt tokens: exact if the head has them, else from its bytes; at least 1."""
        if head.prompt_tokens >= 0:
            return head.prompt_tokens
        return max(1, int(head.prompt_bytes / self.bytes_per_token))

    def expected_output_tokens(self, head: Head) -> int:
        """Answer tokens: the running mean, at most what the client allows."""
        expected = max(1, int(self.output_tokens))
        return expected if head.max_tokens < 0 else min(expected, head.max_tokens)

    def learn(self, head: Head, estimated_prompt_tokens: int, usage: Usage) -> None:
        """Takes a finished answer in; usage that was counted rather than told teaches nothing."""
        if not usage.known or usage.prompt_tokens <= 0:
            return
        self.estimated_tokens += estimated_prompt_tokens
        self.settled_tokens += usage.prompt_tokens
        if head.prompt_bytes > 0:
            seen = head.prompt_bytes / usage.prompt_tokens
            seen = min(max(seen, BYTES_PER_TOKEN_MIN), BYTES_PER_TOKEN_MAX)
            self.bytes_per_token += WEIGHT * (seen - self.bytes_per_token)
        self.output_tokens += WEIGHT * (usage.output_tokens - self.output_tokens)
