"""The console's beat and its viewers.

Once a second the gateway is looked at: a point of history, new events. Only while somebody watches is more made of
it: one message, encoded once, handed to every viewer. A viewer too slow to take them is let go; the browser comes
back by itself and starts from a whole picture.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from tidegate.console import picture, site
from tidegate.console.events import Event, Watch
from tidegate.console.history import History
from tidegate.gateway.export import status_of
from tidegate.gateway.shell import Gateway

BEAT_S: Final = 1.0
MAX_VIEWERS: Final = 32
MAX_BEHIND: Final = 8
"""Messages a viewer may be behind."""

Json = dict[str, Any]
Viewer = asyncio.Queue[bytes | None]


class Console:
    """One gateway's console. `start` and `stop` from the loop it runs on."""

    def __init__(self, gateway: Gateway, wall: Callable[[], float] = time.time) -> None:
        self._gateway = gateway
        self._wall = wall
        self._static = picture.static(gateway)
        self._history = History(gateway)
        self._watch = Watch(gateway)
        self._tenants = picture.TenantRates(gateway)
        self._busiest: list[Json] = []
        self._rows: list[picture.Row] = []
        self._viewers: set[Viewer] = set()
        self._timer: asyncio.TimerHandle | None = None

    def routes(self) -> list[BaseRoute]:
        """What it adds to the admin port."""
        return [
            Route("/", lambda request: RedirectResponse("/console/")),
            Route("/console", lambda request: RedirectResponse("/console/")),
            Route("/console/state", self._answer_state),
            Route("/console/stream", self._answer_stream),
            Route("/console/{name:path}", site.answer_file),
        ]

    def start(self) -> None:
        self.beat()
        self._timer = asyncio.get_running_loop().call_later(BEAT_S, self.start)

    def stop(self) -> None:
        """Ends every viewer's stream."""
        if self._timer is not None:
            self._timer.cancel()
        for viewer in list(self._viewers):
            self._let_go(viewer)

    @property
    def viewers(self) -> int:
        """How many watch."""
        return len(self._viewers)

    def beat(self) -> None:
        """One look."""
        now, wall_s = self._gateway.now(), self._wall()
        point = self._history.take(now)
        events = self._watch.look(point, now, wall_s)
        self._busiest = self._tenants.take(now)
        if not self._viewers:
            self._rows = []
            return
        message = _message("beat", self._change(point, events, now, wall_s))
        for viewer in list(self._viewers):
            if viewer.full():
                self._let_go(viewer)
            else:
                viewer.put_nowait(message)

    def state(self) -> Json:
        """The whole picture but for its history."""
        now = self._gateway.now()
        return {
            **self._static,
            **self._figures(self._wall()),
            "rows": picture.rows(self._gateway, now),
            "events": list(self._watch.events),
        }

    def _figures(self, wall_s: float) -> Json:
        totals = self._history.totals
        outcomes = {outcome.value: count for outcome, count in totals.outcomes.items() if count} if totals else {}
        return {
            "at_s": wall_s,
            "status": status_of(self._gateway),
            "queued": self._gateway.gate.queued,
            "in_flight": self._gateway.gate.in_flight,
            "outcomes": outcomes,
            "tenants": self._busiest,
        }

    def _change(self, point: list[float | None], events: list[Event], now: float, wall_s: float) -> Json:
        """What a viewer who has the last message lacks."""
        before, self._rows = self._rows, picture.rows(self._gateway, now)
        if len(before) == len(self._rows):
            changed = [(number, row) for number, row in enumerate(self._rows) if row != before[number]]
        else:
            changed = list(enumerate(self._rows))
        return {**self._figures(wall_s), "point": point, "rows": changed, "events": events}

    async def _answer_state(self, request: Request) -> Response:
        document = {**self.state(), "now": dict(zip(self._history.columns(), self._latest(), strict=True))}
        return Response(msgspec.json.encode(document), headers=site.HEADERS, media_type="application/json")

    def _latest(self) -> list[float | None]:
        return [column[-1] if column else None for column in self._history.columns().values()]

    async def _answer_stream(self, request: Request) -> Response:
        if len(self._viewers) >= MAX_VIEWERS:
            return Response(
                f"{MAX_VIEWERS} consoles are open already; close one.\n", 503, headers={"retry-after": "30"}
            )
        viewer: Viewer = asyncio.Queue(MAX_BEHIND + 1)
        self._viewers.add(viewer)
        self._rows = []  # the next beat tells all: a newcomer has not seen the last one
        whole = {**self.state(), "history": self._history.columns(), "beat_s": BEAT_S}
        viewer.put_nowait(_message("whole", whole))
        return StreamingResponse(self._stream(viewer), headers=site.HEADERS, media_type="text/event-stream")

    async def _stream(self, viewer: Viewer) -> AsyncIterator[bytes]:
        try:
            while (message := await viewer.get()) is not None:
                yield message
        finally:
            self._viewers.discard(viewer)

    def _let_go(self, viewer: Viewer) -> None:
        """Ends a viewer's stream; what it has not taken is dropped."""
        self._viewers.discard(viewer)
        while not viewer.empty():
            viewer.get_nowait()
        viewer.put_nowait(None)


def _message(event: str, document: Json) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event.encode("ascii"), msgspec.json.encode(document))
