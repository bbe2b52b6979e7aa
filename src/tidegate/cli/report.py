"""`tidegate report`: one recorded run, or two compared, as a table, JSON or a one-file HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from tidegate.errors import UnavailableError
from tidegate.report.page import page
from tidegate.report.table import comparison_table, run_table
from tidegate.traffic.figures import figures_of
from tidegate.traffic.store import read_run


def command(
    run: Annotated[Path, typer.Argument(help="A recorded run's folder, e.g. runs/20260131T081500Z-default.")],
    run2: Annotated[Path | None, typer.Argument(help="A second run, to compare the first with.")] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Write a one-file HTML report here.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print figures as JSON instead of a table.")] = False,
) -> None:
    """Render one run, or compare two. Data goes to stdout."""
    runs = [read_run(path) for path in (run, run2) if path is not None]
    figures = [figures_of(one) for one in runs]
    if html is not None:
        write_page(page(runs), html)
    if json:
        data = figures if len(figures) > 1 else figures[0]
        print(msgspec.json.format(msgspec.json.encode(data), indent=2).decode())
    else:
        Console().print(run_table(figures[0]) if len(figures) == 1 else comparison_table(*figures))
    if html is not None:
        Console(stderr=True).print(f"report: {html}", soft_wrap=True, markup=False)


def write_page(text: str, path: Path) -> None:
    """Writes a report. Raises `UnavailableError` when the place cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as exc:
        raise UnavailableError(
            f"{path}: cannot be written: {exc.strerror or exc}", hint="choose another --html"
        ) from exc
