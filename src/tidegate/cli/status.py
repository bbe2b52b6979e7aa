"""`tidegate status`: what a running gateway says of itself, once, for people and for scripts."""

from __future__ import annotations

import http.client
import json
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tidegate.errors import ExitCode, TidegateError, UnavailableError

DEFAULT_ADMIN: Final = "127.0.0.1:9080"
PATIENCE_S: Final = 10.0
WORDS: Final = {
    "ok": "every model is served",
    "no_instance": "a model is not served: no instance of it is ready",
    "draining": "draining: no new requests",
}
STYLES: Final = {
    "ready": "cyan",
    "ejected": "bold red",
    "launching": "yellow",
    "draining": "yellow",
    "stopped": "dim",
    "tripped": "red",
}
UNKNOWN: Final = "–"
FIGURES_PER_LINE: Final = 5

Json = dict[str, Any]


def command(
    config: Annotated[Path | None, typer.Option("-c", "--config", help="Its document, for the admin address.")] = None,
    admin: Annotated[
        str, typer.Option(help="HOST:PORT of its admin port. [default: the document's, or 127.0.0.1:9080]")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Everything, as JSON.")] = False,
) -> ExitCode:
    """Say how a running gateway is: exit 0 while every model is served, 1 when not, 4 when nothing answers."""
    document = fetch(admin_address(config, admin))
    if as_json:
        json.dump(document, sys.stdout, indent=1, ensure_ascii=False)
        print()
    else:
        show(document, Console())
    return ExitCode.OK if document["status"] == "ok" else ExitCode.FAILED


def admin_address(config: Path | None, admin: str) -> str:
    """Where to ask."""
    if admin:
        return admin
    path = config or Path("tidegate.yaml")
    if config is None and not path.exists():
        return DEFAULT_ADMIN
    from tidegate.spec import load_spec

    return load_spec(path).gateway.admin


def fetch(address: str) -> Json:
    """The gateway's state, its instances as named figures. Raises `UnavailableError` when there is none to have."""
    try:
        connection = http.client.HTTPConnection(address, timeout=PATIENCE_S)
        connection.request("GET", "/console/state")
        answer = connection.getresponse()
        status, body = answer.status, answer.read()
        connection.close()
    except (OSError, http.client.HTTPException) as exc:
        raise _nothing(address, getattr(exc, "strerror", None) or str(exc) or type(exc).__name__) from exc
    if status == 404:
        hint = "start it without --no-console, or ask /health and /metrics"
        raise UnavailableError(f"the gateway at {address} has no console to ask", hint=hint)
    try:
        return named(json.loads(body))
    except (ValueError, KeyError, TypeError) as exc:
        raise _nothing(address, f"it answered {status} and nothing a gateway would say") from exc


def _nothing(address: str, why: str) -> TidegateError:
    hint = "is it running? name its admin port with --admin HOST:PORT, or its document with -c"
    return UnavailableError(f"no gateway answers at {address} (admin port): {why}", hint=hint)


def named(state: Json) -> Json:
    """The console's compact rows as one object per instance."""
    instances = [
        {**about, **dict(zip(state["row"], row, strict=True)), "state": state["states"][row[0]]}
        for about, row in zip(state["instances"], state["rows"], strict=True)
    ]
    left_out = ("rows", "row", "states", "kinds", "instances")
    return {**{key: value for key, value in state.items() if key not in left_out}, "instances": instances}


def show(document: Json, console: Console) -> None:
    """For people."""
    console.print(headline(document))
    console.print(figures(document))
    wrong = [one for one in document["instances"] if one["state"] != "ready"]
    ready = len(document["instances"]) - len(wrong)
    console.print(Text(f"{ready} of {len(document['instances'])} instances ready"))
    for one in wrong:
        console.print(Text(f"  {one['name']} ({one['model']}, {one['url']}): {one['state']}", STYLES[one["state"]]))


def headline(document: Json) -> Text:
    """One line: is it well?"""
    style = {"ok": "bold cyan", "no_instance": "bold red"}.get(document["status"], "bold yellow")
    said: str = WORDS.get(document["status"], str(document["status"]))
    return Text.assemble(("Tidegate", "bold"), "  ", (said, style))


def figures(document: Json) -> Table:
    """What comes in, what is kept, what waits; red where a promise is broken."""
    now, slo = document["now"], document["slo"]
    ends = [now[name] or 0.0 for name in ("completed", "refused", "turned_away", "failed", "cancelled")]
    asked = sum(ends)
    cells = [
        ("requests/s", rate(asked), False),
        ("refused", share(ends[1] / asked if asked else 0.0), asked > 0 and ends[1] / asked > 0.05),
        ("failed/s", rate(ends[3]), ends[3] > 0),
        ("TTFT P99", seconds(now["ttft_p99_s"]), (now["ttft_p99_s"] or 0.0) > slo["ttft_s"]),
        ("gap P99", seconds(now["gap_p99_s"]), (now["gap_p99_s"] or 0.0) > slo["itl_s"]),
        ("queued", str(document["queued"]), document["queued"] > 0.8 * document["queue_max"]),
        ("in flight", str(document["in_flight"]), False),
        ("fullest KV", share(now["kv_max"]), (now["kv_max"] or 0.0) > document["kv_high"]),
        ("tokens/s", rate(now["output_tokens"]), False),
    ]
    table = Table.grid(padding=(0, 2, 0, 0))
    for at in range(0, len(cells), FIGURES_PER_LINE):
        line = [
            Text.assemble((f"{name} ", "dim"), (value, "bold red" if bad else "bold"))
            for name, value, bad in cells[at : at + FIGURES_PER_LINE]
        ]
        table.add_row(*line)
    return table


def seconds(value: float | None) -> str:
    """As people read it."""
    if value is None:
        return UNKNOWN
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"


def share(value: float | None) -> str:
    """In per cent."""
    return UNKNOWN if value is None else f"{value:.0%}"


def rate(value: float | None) -> str:
    """A rate or a count."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.1f}"
