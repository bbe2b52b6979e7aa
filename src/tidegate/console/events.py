"""What happened: transitions found by comparing one look at the gateway with the one before.

In: the gateway once a second. Out: at most `KEPT` events, newest last, as kinds with figures; the page puts them into
words of the reader's language. A thousand instances that move at once are one event.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Literal

from msgspec import Struct

from tidegate.console import picture
from tidegate.console.history import COLUMNS
from tidegate.gateway.shell import Gateway
from tidegate.policy import lifecycle

KEPT: Final = 200
MANY: Final = 6
"""More instances than this with the same transition in the same second are told together."""
STALE_S: Final = 5.0
CALM_POINTS: Final = 15
"""Seconds without it before something counts as over."""
LATE_POINTS: Final = 3
"""Seconds in a row before a quantile counts as late; a refusal counts at once."""

Level = Literal["good", "note", "bad"]

LEVELS: Final[dict[int, Level]] = {lifecycle.READY: "good", lifecycle.EJECTED: "bad", picture.TRIPPED: "bad"}


class Event(Struct, omit_defaults=True):
    """One thing that happened. `at_s` is wall-clock time since 1970."""

    number: int
    at_s: float
    level: Level
    kind: str
    instance: str = ""
    model: str = ""
    state: str = ""
    was: str = ""
    count: int = 0
    value: float = 0.0


class Spell:
    """Something that lasts: begins after `needed` seconds in a row, is over after `CALM_POINTS` without it."""

    __slots__ = ("_needed", "_seconds", "on")

    def __init__(self, needed: int) -> None:
        self.on = False
        self._needed = needed
        self._seconds = 0

    def turned(self, present: bool) -> bool:
        """Takes a look; whether it began or ended with it."""
        self._seconds = self._seconds + 1 if present != self.on else 0
        if self._seconds < (CALM_POINTS if self.on else self._needed):
            return False
        self.on = present
        self._seconds = 0
        return True


class Watch:
    """Compares looks. `look` once a second."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.events: deque[Event] = deque(maxlen=KEPT)
        self._numbered = 0
        self._states = [picture.shown(instance) for instance in gateway.gate.instances]
        self._stale = [False] * len(self._states)
        self._served = dict.fromkeys(gateway.gate.models(), False)
        self._spells = {
            "refusing": Spell(1),
            "failing": Spell(1),
            "late_ttft": Spell(LATE_POINTS),
            "late_gap": Spell(LATE_POINTS),
        }
        self._draining = False

    def look(self, point: list[float | None], now: float, wall_s: float) -> list[Event]:
        """What is new since the last look; `point` is the history's newest."""
        before = self._numbered
        self._moves(wall_s)
        self._freshness(now, wall_s)
        self._models(wall_s)
        self._spells_of(dict(zip(COLUMNS, point, strict=True)), wall_s)
        if self._gateway.server.closing and not self._draining:
            self._draining = True
            self._tell(wall_s, "note", "draining")
        new = min(self._numbered - before, KEPT)
        return list(self.events)[-new:] if new else []

    def _tell(self, wall_s: float, level: Level, kind: str, **told: str | float) -> None:
        self._numbered += 1
        self.events.append(Event(self._numbered, wall_s, level, kind, **told))  # type: ignore[arg-type]

    def _moves(self, wall_s: float) -> None:
        moved: dict[tuple[int, int], list[int]] = {}
        for number, instance in enumerate(self._gateway.gate.instances):
            state = picture.shown(instance)
            if state != self._states[number]:
                moved.setdefault((self._states[number], state), []).append(number)
                self._states[number] = state
        for (was, state), numbers in moved.items():
            level: Level = LEVELS.get(state, "note")
            names = {"state": picture.STATES[state], "was": picture.STATES[was]}
            if len(numbers) > MANY:
                self._tell(wall_s, level, "instances_moved", count=len(numbers), **names)
                continue
            for number in numbers:
                self._tell(wall_s, level, "instance_moved", instance=self._name(number), **names)

    def _freshness(self, now: float, wall_s: float) -> None:
        turned: dict[bool, list[int]] = {True: [], False: []}
        for number, instance in enumerate(self._gateway.gate.instances):
            stale = instance.ready and instance.sample is not None and now - instance.sampled_s > STALE_S
            if stale != self._stale[number]:
                self._stale[number] = stale
                if stale or instance.ready:
                    turned[stale].append(number)
        for stale, numbers in turned.items():
            kind, level = ("stale", "bad") if stale else ("fresh", "good")
            if len(numbers) > MANY:
                self._tell(wall_s, level, f"instances_{kind}", count=len(numbers))  # type: ignore[arg-type]
                continue
            for number in numbers:
                self._tell(wall_s, level, f"instance_{kind}", instance=self._name(number))  # type: ignore[arg-type]

    def _models(self, wall_s: float) -> None:
        for model, pool in self._gateway.gate.pools.items():
            served = any(instance.ready for instance in pool.instances)
            if served != self._served[model]:
                self._served[model] = served
                self._tell(wall_s, "good" if served else "bad", "served" if served else "unserved", model=model)

    def _spells_of(self, point: dict[str, float | None], wall_s: float) -> None:
        slo = self._gateway.spec.slo
        for kind, value, limit in (
            ("refusing", point["refused"], 0.0),
            ("failing", point["failed"], 0.0),
            ("late_ttft", point["ttft_p99_s"], slo.ttft_s),
            ("late_gap", point["gap_p99_s"], slo.itl_s),
        ):
            spell = self._spells[kind]
            if spell.turned(value is not None and value > limit):
                level: Level = "bad" if spell.on else "good"
                self._tell(wall_s, level, kind if spell.on else f"{kind}_over", value=value or 0.0)

    def _name(self, number: int) -> str:
        return self._gateway.gate.instances[number].name
