"""A stretch of pure decode steps of one batch, in closed form.

While the batch stays the same, the mean context grows by one a step; while it stays in one cell of the cost table,
the step time grows linearly with it. So the end of the n-th step is a polynomial of n, evaluated from the stretch's
anchor alone: taking the steps one by one or many at once gives the same times to the last bit.
"""

from __future__ import annotations

from bisect import bisect_right

from tidegate.twin.cost import UNBOUNDED, StepCost


class Stretch:
    """Pure decode steps whose ends are known in closed form; `done` of them are finished."""

    __slots__ = ("anchor_s", "context", "done", "limit", "rise_s", "step_s", "valid")

    def __init__(self) -> None:
        self.valid = False
        self.anchor_s = 0.0
        self.context = 0.0
        """Mean context of the first step, the token being made included."""
        self.limit = 0.0
        """Context at which the cell ends."""
        self.step_s = 0.0
        self.rise_s = 0.0
        self.done = 0

    def begin(self, now: float, cost: StepCost, batch: int, context: float) -> None:
        """Anchors a stretch at `now`."""
        knots, steps_s = cost.context_knots, cost.decode_row(batch).step_s
        self.valid = True
        self.done = 0
        self.anchor_s = now
        self.context = context
        if context < knots[0]:
            self.limit, self.step_s, self.rise_s = knots[0], steps_s[0], 0.0
            return
        last = len(knots) - 2
        cell = min(bisect_right(knots, context) - 1, last)
        self.limit = UNBOUNDED if cell == last else knots[cell + 1]
        self.rise_s = (steps_s[cell + 1] - steps_s[cell]) / (knots[cell + 1] - knots[cell])
        self.step_s = steps_s[cell] + self.rise_s * (context - knots[cell])

    def end_s(self, steps: int) -> float:
        """When the stretch's `steps`-th step ends."""
        return self.anchor_s + (steps * self.step_s + self.rise_s * (steps * (steps - 1) / 2))

    def goes_on(self, now: float) -> bool:
        """Whether the stretch's next step begins at `now`, where its last one ended, and is in the cell."""
        return self.valid and self.end_s(self.done) == now and self.context + self.done < self.limit

    def room(self, most: int) -> int:
        """How many more steps, at least 1 and at most `most`, stay in the cell."""
        if self.context + (self.done + most - 1) < self.limit:
            return most
        steps = max(1, int(self.limit - self.context) - self.done)
        while self.context + (self.done + steps) < self.limit:
            steps += 1
        while steps > 1 and self.context + (self.done + steps - 1) >= self.limit:
            steps -= 1
        return steps
