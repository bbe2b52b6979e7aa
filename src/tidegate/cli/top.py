"""`tidegate top`: the console in a terminal, renewed every second."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tidegate.cli.status import STYLES, UNKNOWN, admin_address, fetch, figures, headline, rate, share
from tidegate.errors import ExitCode, UnavailableError

KEPT: Final = 60
BARS: Final = " ▁▂▃▄▅▆▇█"
FULL: Final = 10
"""Width of a KV bar, in characters."""
CHROME_LINES: Final = 19
"""What is not instances: figures, curves, the tables' heads, events."""
LEAST_LINES: Final = 4
EVENTS_SHOWN: Final = 5
ORDER: Final = ("ejected", "tripped", "stopped", "launching", "draining", "ready")

Json = dict[str, Any]


def command(
    config: Annotated[Path | None, typer.Option("-c", "--config", help="Its document, for the admin address.")] = None,
    admin: Annotated[
        str, typer.Option(help="HOST:PORT of its admin port. [default: the document's, or 127.0.0.1:9080]")
    ] = "",
    every: Annotated[float, typer.Option(min=0.2, max=60, help="Seconds between looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print one picture and end; so does a pipe.")] = False,
) -> ExitCode:
    """Watch a running gateway: figures, instances, tenants, events. q or Ctrl-C ends it."""
    address = admin_address(config, admin)
    console = Console()
    view = View(address)
    view.take(fetch(address))
    if once or not console.is_terminal:
        console.print(view.picture(console.size.height))
        return ExitCode.OK
    with (
        keys() as pressed,
        Live(view.picture(console.size.height), console=console, screen=True, auto_refresh=False) as live,
    ):
        while not pressed(every):
            view.look()
            live.update(view.picture(console.size.height), refresh=True)
    return ExitCode.OK


class View:
    """The last looks at one gateway, and how they are drawn."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._lost = ""
        self._document: Json = {}
        self._curves: dict[str, deque[float | None]] = {
            name: deque(maxlen=KEPT) for name in ("completed", "refused", "ttft_p99_s")
        }

    def look(self) -> None:
        """Asks the gateway; while it does not answer the last picture stays, and says so."""
        try:
            self.take(fetch(self._address))
        except UnavailableError as exc:
            self._lost = exc.message

    def take(self, document: Json) -> None:
        """A new state."""
        self._lost, self._document = "", document
        for name, curve in self._curves.items():
            curve.append(document["now"][name])

    def picture(self, lines: int) -> RenderableType:
        """A screen of `lines`."""
        document = self._document
        head = Text(self._lost, "bold red") if self._lost else headline(document)
        head.append(time.strftime("  %H:%M:%S", time.localtime(document["at_s"])), "dim")
        parts: list[RenderableType] = [head, Text(), figures(document), Text(), self._curve_lines(), Text()]
        room = max(LEAST_LINES, lines - CHROME_LINES - min(3, len(document["tenants"])))
        return Group(*parts, instances(document, room), Text(), tenants(document), Text(), events(document))

    def _curve_lines(self) -> Text:
        limit_s = self._document["slo"]["ttft_s"]
        text = Text()
        for name, label, style in (
            ("completed", "completed/s", "cyan"),
            ("refused", "refused/s", "yellow"),
            ("ttft_p99_s", "TTFT P99", "cyan"),
        ):
            values = self._curves[name]
            least = limit_s if name == "ttft_p99_s" else 1.0
            text.append(f"{label:<12}", "dim")
            text.append(curve(values, least) + "\n", style)
        text.rstrip()
        return text


def curve(values: deque[float | None], least: float) -> str:
    """A line of bars, the highest at the greatest value (or `least`); a gap where nothing is known."""
    top = max([least, *(value for value in values if value is not None)])
    return "".join(
        " " if value is None else BARS[min(len(BARS) - 1, round(value / top * (len(BARS) - 1)))] for value in values
    )


def instances(document: Json, room: int) -> Table:
    """Those in trouble first, then the fullest."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name, side in (("instance", "left"), ("model", "left"), ("state", "left"), ("KV used", "left"),
                       ("running", "right"), ("waiting", "right"), ("in flight", "right")):  # fmt: skip
        table.add_column(name, justify=side, no_wrap=True)  # type: ignore[arg-type]
    ordered = sorted(document["instances"], key=lambda one: (ORDER.index(one["state"]), -(one["kv_used"] or 0.0)))
    shown = ordered if len(ordered) <= room else ordered[: room - 1]
    for one in shown:
        table.add_row(
            Text(one["name"]), Text(one["model"]), Text(one["state"], STYLES[one["state"]]),
            bar(one["kv_used"], document["kv_high"]),
            *(rate(one[name]) for name in ("running", "waiting", "in_flight")),
        )  # fmt: skip
    if len(shown) < len(ordered):
        table.add_row(Text(f"… and {len(ordered) - len(shown)} more", "dim"))
    return table


def bar(value: float | None, high: float) -> Text:
    """A share as a bar and a figure; unknown is said, not drawn empty."""
    if value is None:
        return Text(f"{'?' * FULL} {UNKNOWN}", "dim")
    filled = min(FULL, round(value * FULL))
    return Text("█" * filled + "░" * (FULL - filled) + f" {share(value)}", "bold red" if value > high else "cyan")


def tenants(document: Json) -> Text:
    """The busiest three."""
    text = Text("tenants  ", "dim")
    for one in document["tenants"][:3]:
        text.append(f"{one['name']} {rate(one['tokens_s'])} tokens/s", "default").append("   ")
    return text


def events(document: Json) -> Text:
    """The latest, newest first."""
    text = Text("events", "dim")
    for one in reversed(document["events"][-EVENTS_SHOWN:]):
        style = {"bad": "red", "good": "cyan"}.get(one["level"], "default")
        text.append(time.strftime("\n%H:%M:%S  ", time.localtime(one["at_s"])), "dim").append(event_words(one), style)
    return text


def event_words(event: Json) -> str:
    """An event in plain words."""
    subject = event.get("instance") or event.get("model") or (f"{event['count']} instances" if "count" in event else "")
    kind = event["kind"]
    if kind.endswith("_moved"):
        return f"{subject}: {event['state']}, was {event['was']}"
    return f"{subject} {EVENTS.get(kind, kind)}".strip()


EVENTS: Final = {
    "instance_stale": "gives no fresh metrics",
    "instances_stale": "give no fresh metrics",
    "instance_fresh": "gives metrics again",
    "instances_fresh": "give metrics again",
    "served": "is served",
    "unserved": "is not served: no instance is ready",
    "refusing": "requests are refused for want of room",
    "refusing_over": "no more refusals for want of room",
    "failing": "requests fail",
    "failing_over": "requests no longer fail",
    "late_ttft": "first tokens are late",
    "late_ttft_over": "first tokens are within the promise again",
    "late_gap": "gaps are too long",
    "late_gap_over": "gaps are within the promise again",
    "draining": "the gateway drains: no new requests",
}


class Keys:
    """Waits for a key; q means the end."""

    def __init__(self, file: int | None) -> None:
        self._file = file

    def __call__(self, patience_s: float) -> bool:
        """Waits so long, or until q."""
        deadline = time.monotonic() + patience_s
        while (left := deadline - time.monotonic()) > 0:
            if self._file is None:
                time.sleep(left)
            elif select.select([self._file], [], [], left)[0] and self._ended(os.read(self._file, 64)):
                return True
        return False

    def _ended(self, typed: bytes) -> bool:
        if not typed:
            self._file = None  # nobody is at the keyboard any more
        return b"q" in typed.lower()


@contextlib.contextmanager
def keys() -> Iterator[Keys]:
    """The terminal hands keys over at once, and is left as it was."""
    if not sys.stdin.isatty():
        yield Keys(None)
        return
    import termios
    import tty

    file = sys.stdin.fileno()
    before = termios.tcgetattr(file)
    try:
        tty.setcbreak(file)
        yield Keys(file)
    finally:
        termios.tcsetattr(file, termios.TCSADRAIN, before)
