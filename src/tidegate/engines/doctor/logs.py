"""One pass over a log of any size.

Blocks of bytes go in as they are read; literal triggers are searched for by the block, which runs at memory speed, and
only lines that hold one are decoded. What is kept is bounded: counts, the first and last line of each symptom, and the
few figures of the watchers.
"""

from __future__ import annotations

import re
from typing import Final

from tidegate.engines.doctor.diagnosis import Evidence, Symptom, quoted, symptoms
from tidegate.engines.doctor.watchers import WATCHERS, Watcher

BLOCK_BYTES: Final = 2**20
_LONGEST_LINE_BYTES: Final = 2**20
_DECODED_BYTES: Final = 8192
READY: Final = (b"Application startup complete", b"The server is fired up and ready to roll")


class Hits:
    """What was seen of one symptom."""

    __slots__ = ("after_ready", "count", "first", "last")

    def __init__(self, first: Evidence) -> None:
        self.count = 0
        self.first = first
        self.last = first
        self.after_ready = 0


class LogScan:
    """Reads one log. `feed` takes any split of its bytes; `close` ends it."""

    __slots__ = ("_carry", "_line", "_patterns", "_ready", "_triggers", "hits", "name", "watchers")

    def __init__(self, name: str) -> None:
        self.name = name
        self.hits: dict[str, Hits] = {}
        self.watchers: list[Watcher] = [kind(name) for kind in WATCHERS]
        self._carry = b""
        self._line = 1
        self._ready = False
        self._triggers: dict[bytes, list[Symptom | Watcher | None]] = {}
        self._patterns: dict[str, re.Pattern[str]] = {}
        for symptom in symptoms():
            self._patterns[symptom.id] = re.compile(symptom.pattern)
            for trigger in symptom.triggers:
                self._triggers.setdefault(trigger.encode(), []).append(symptom)
        for watcher in self.watchers:
            for literal in watcher.triggers:
                self._triggers.setdefault(literal, []).append(watcher)
        for literal in READY:
            self._triggers.setdefault(literal, []).append(None)

    def feed(self, data: bytes) -> None:
        """The next piece of the log."""
        data = self._carry + data
        end = data.rfind(b"\n") + 1
        if not end and len(data) < _LONGEST_LINE_BYTES:
            self._carry = data
            return
        end = end or len(data)
        self._carry = data[end:]
        self._block(data[:end])

    def close(self) -> None:
        """The end of the log; a last line without a line end counts too."""
        if self._carry:
            self._block(self._carry)
            self._carry = b""

    def _block(self, block: bytes) -> None:
        starts: dict[int, list[bytes]] = {}
        for trigger in self._triggers:
            at = block.find(trigger)
            while at >= 0:
                starts.setdefault(block.rfind(b"\n", 0, at) + 1, []).append(trigger)
                line_end = block.find(b"\n", at)
                at = block.find(trigger, line_end) if line_end >= 0 else -1
        at, number = 0, self._line
        for start in sorted(starts):
            number += block.count(b"\n", at, start)
            at = start
            end = block.find(b"\n", start)
            self._hit(number, block[start : len(block) if end < 0 else end], starts[start])
        self._line += block.count(b"\n")

    def _hit(self, number: int, line: bytes, triggers: list[bytes]) -> None:
        text = line[:_DECODED_BYTES].decode("utf-8", errors="replace")
        seen: set[int] = set()
        for trigger in triggers:
            for taker in self._triggers[trigger]:
                if id(taker) not in seen:
                    seen.add(id(taker))
                    self._take(taker, number, text)

    def _take(self, taker: Symptom | Watcher | None, number: int, text: str) -> None:
        if taker is None:
            self._ready = True
        elif isinstance(taker, Watcher):
            taker.line(number, text)
        elif self._patterns[taker.id].search(text):
            found = Evidence(self.name, number, quoted(text))
            hits = self.hits.setdefault(taker.id, Hits(found))
            hits.count += 1
            hits.last = found
            hits.after_ready += self._ready
