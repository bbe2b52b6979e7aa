"""Terminal tables of one run, or of two side by side.

What a user named is put in as `Text`: a plain string would be read as Rich's markup.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tidegate.report.rows import (
    ROWS,
    UNKNOWN,
    Row,
    accounting_line,
    bound,
    count,
    gain,
    meets,
    milliseconds,
    share,
    show,
)
from tidegate.traffic.figures import Figures, RunFigures

_GAIN_STYLE = {1: "green", -1: "red", 0: "dim"}


def run_table(figures: RunFigures) -> Group:
    """Every figure of one run, its phases and length classes, how requests ended, and what to know about it."""
    table = _table(["", "", name_of(figures)])
    for group, rows in _grouped().items():
        for number, row in enumerate(rows):
            table.add_row(group if number == 0 else "", row.title, _cell(row, figures))
        table.add_section()
    parts: list[RenderableType] = [_title(figures), table]
    parts += [_parts_table("Phase", figures.phases), _parts_table("Prompts", figures.classes)]
    parts += [_outcomes(figures), _footer(figures)]
    return Group(*parts)


def comparison_table(before: RunFigures, after: RunFigures) -> Group:
    """Two runs and what changed from the first to the second."""
    table = _table(["", "", name_of(before), name_of(after), "change"])
    for group, rows in _grouped().items():
        for number, row in enumerate(rows):
            text, direction = gain(row, before, after)
            change = Text(text, style=_GAIN_STYLE[direction])
            table.add_row(group if number == 0 else "", row.title, _cell(row, before), _cell(row, after), change)
        table.add_section()
    return Group(_title(before, after), table, _footer(before), _footer(after))


def name_of(figures: RunFigures) -> str:
    """What a run is called in a heading."""
    return figures.label or figures.id


def _grouped() -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in ROWS:
        groups.setdefault(row.group, []).append(row)
    return groups


def _title(*runs: RunFigures) -> Text:
    kinds = {"simulated (twin)" if run.kind == "twin" else "measured" for run in runs}
    emulated = any(run.emulated for run in runs)
    slo = f"SLO: TTFT {bound(runs[0].slo_ttft_s)}, ITL {bound(runs[0].slo_itl_s)}"
    return Text(f"{' and '.join(sorted(kinds))}{', EMULATED engines' if emulated else ''} · {slo}", style="bold")


def _table(columns: list[str]) -> Table:
    table = Table(header_style="bold")
    for number, column in enumerate(columns):
        table.add_column(Text(column), justify="left" if number < 2 else "right", no_wrap=number < 2)
    return table


def _cell(row: Row, figures: RunFigures) -> Text:
    text = show(row, figures)
    if text == UNKNOWN:
        return Text(text, style="dim")
    within = meets(row, figures)
    if within is None:
        return Text(text)
    return Text(f"{text} {'✓' if within else '✗'}", style="green" if within else "red")


def _parts_table(what: str, parts: Mapping[str, Figures]) -> RenderableType:
    if not parts:
        return Text("")
    table = Table(header_style="bold")
    table.add_column(what, no_wrap=True)
    for column in ("sent", "done", "in SLO", "TTFT P50", "TTFT P99", "ITL P99", "tokens/s"):
        table.add_column(Text(column), justify="right", no_wrap=True)
    for name, part in parts.items():
        table.add_row(
            Text(name),
            str(part.sent),
            str(part.completed),
            _or_unknown(part.goodput_share, share),
            _or_unknown(part.ttft.p50_s, milliseconds),
            _or_unknown(part.ttft.p99_s, milliseconds),
            _or_unknown(part.itl.p99_s, milliseconds),
            _or_unknown(part.output_tokens_per_s, count),
        )
    return table


def _or_unknown(value: float | None, form: Callable[[float], str]) -> str:
    return UNKNOWN if value is None else form(value)


def _outcomes(figures: RunFigures) -> Text:
    listed = ", ".join(f"{name} {count}" for name, count in figures.total.outcomes.items())
    return Text(f"Outcomes: {listed or 'none'}")


def _footer(figures: RunFigures) -> RenderableType:
    balanced = figures.accounting.balanced
    lines = [
        Text(f"{name_of(figures)}: {accounting_line(figures.accounting)}", style="red" if balanced is False else "")
    ]
    if figures.client_bound:
        lines.append(Text(f"CLIENT-BOUND, not to be quoted: {figures.client_bound_why}", style="bold yellow"))
    if figures.text_faults:
        lines.append(Text(f"{figures.text_faults} answers had lost, repeated or foreign text", style="bold red"))
    if figures.interrupted:
        lines.append(Text("INTERRUPTED: the schedule was not sent whole", style="bold yellow"))
    lines += [Text(f"note: {note}", style="dim") for note in figures.notes]
    return Padding(Group(*lines), (0, 0, 1, 0))
