"""The retry budget: second attempts as a share of the traffic, for the whole pool (design.md §4.7).

Every request deposits `share` of a retry, up to `RESERVE`; a retry withdraws one. When many instances fail at once
the budget empties and the rest fail fast, so that retries never multiply an outage (Finagle's retry budget idea).
"""

from __future__ import annotations

from typing import Final

RESERVE: Final = 10.0


class RetryBudget:
    """Starts with a full reserve, so that the first failure after a start is retried."""

    __slots__ = ("balance", "share", "spent")

    def __init__(self, share: float) -> None:
        self.share = share
        self.balance = RESERVE if share > 0 else 0.0
        self.spent = 0

    def deposit(self) -> None:
        """One more request was taken."""
        self.balance = min(RESERVE, self.balance + self.share)

    def withdraw(self) -> bool:
        """Takes one retry out; false when the budget is empty."""
        if self.balance < 1.0:
            return False
        self.balance -= 1.0
        self.spent += 1
        return True
