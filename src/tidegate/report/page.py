"""The one-file HTML report: style, script, charts and plotly itself are inside, so it opens offline and can be mailed.

In: one run, or two to compare. Out: HTML text. Everything a user wrote (labels, commands, notes) is escaped.
"""

from __future__ import annotations

import importlib
from html import escape
from importlib import resources
from typing import Final

import msgspec

from tidegate import __version__
from tidegate.errors import UnavailableError
from tidegate.report.charts import ROLES, Chart, Shown, all_charts
from tidegate.report.definitions import DEFINITIONS
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
from tidegate.report.table import name_of
from tidegate.traffic.figures import Figures, figures_of
from tidegate.traffic.record import RunRecord

_HEADLINES: Final = (("Goodput", 0), ("TTFT", 2), ("ITL", 1), ("Throughput", 0))
"""(group, which row of it) shown as cards."""


def page(runs: list[RunRecord]) -> str:
    """The report on one run, or on the change from the first to the second.

    Raises `UnavailableError` where plotly is not installed.
    """
    plotly_js = _plotly_js()
    roles = ROLES[-1:] if len(runs) == 1 else ROLES
    shown = [Shown(run, figures_of(run), role) for run, role in zip(runs, roles)]
    charts = all_charts(shown)
    title = " → ".join(name_of(item.figures) for item in shown)
    return "\n".join([
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)} · Tidegate report</title><style>{_asset('page.css')}</style></head><body><main>",
        _head(shown, title), _warnings(shown), _cards(shown),
        "<h2>Figures</h2>", _figures_table(shown),
        "<h2>Charts</h2>", _figures_html(charts),
        "<h2>By phase and prompt length</h2>", _parts(shown),
        "<h2>How requests ended</h2>", _accounting(shown),
        "<h2>What was run</h2>", _provenance(shown),
        "<h2>Definitions</h2>", _pairs(DEFINITIONS),
        f"<footer>Tidegate {escape(__version__)}. Charts by plotly.js (MIT), inside this file.</footer></main>",
        f'<script type="application/json" id="charts">{_json(charts)}</script>',
        f"<script>{plotly_js}</script><script>{_asset('page.js')}</script></body></html>",
    ])  # fmt: skip


def _plotly_js() -> str:
    try:
        source: str = importlib.import_module("plotly.offline").get_plotlyjs()
    except ImportError as exc:
        raise UnavailableError(
            "the HTML report needs plotly, which is not installed", hint='pip install "tidegate[report]"'
        ) from exc
    return source


def _asset(name: str) -> str:
    return resources.files("tidegate.report").joinpath(name).read_text(encoding="utf-8")


def _json(charts: list[Chart]) -> str:
    """JSON that cannot end the script element it stands in."""
    specs = {chart.key: chart.spec for chart in charts}
    return msgspec.json.encode(specs).decode().replace("<", "\\u003c")


def _head(shown: list[Shown], title: str) -> str:
    first = shown[0].figures
    badges = ""
    if any(item.run.emulated for item in shown):
        badges += '<span class="badge">EMULATED ENGINES</span>'
    if any(item.run.kind == "twin" for item in shown):
        badges += '<span class="badge">SIMULATED</span>'
    what = "Run report" if len(shown) == 1 else "What changed"
    lead = (
        f"SLO: first token within {bound(first.slo_ttft_s)}, 99 % of gaps within "
        f"{bound(first.slo_itl_s)}. {count(shown[-1].figures.total.sent)} requests over "
        f"{shown[-1].figures.total.duration_s:.0f} s, seed {shown[-1].run.seed}."
    )
    if any(item.run.emulated for item in shown):
        lead += " Engine times come from a model of the hardware, not from hardware."
    return (
        f'<header><p class="mark">Tidegate · {what}</p><h1>{escape(title)}</h1>{badges}</header>'
        f'<p class="lead">{lead}</p>'
    )


def _warnings(shown: list[Shown]) -> str:
    lines = []
    for item in shown:
        figures, name = item.figures, escape(name_of(item.figures))
        if figures.client_bound:
            lines.append(f"<b>{name} is client-bound</b> and must not be quoted: {escape(figures.client_bound_why)}.")
        if figures.accounting.balanced is False:
            lines.append(f"<b>{name} does not balance</b>: requests are missing from its record.")
        if figures.text_faults:
            lines.append(f"<b>{name}</b>: {figures.text_faults} answers had lost, repeated or foreign text.")
        if figures.interrupted:
            lines.append(f"<b>{name} was interrupted</b>: its schedule was not sent whole.")
    return "".join(f'<p class="warning">{line}</p>' for line in lines)


def _cards(shown: list[Shown]) -> str:
    cards = []
    for group, number in _HEADLINES:
        row = [row for row in ROWS if row.group == group][number]
        now = shown[-1].figures
        verdict = {True: "pass", False: "miss", None: ""}[meets(row, now)]
        then = "" if len(shown) == 1 else f"was {_value(row, shown[0])} · {_change(row, shown)}"
        limit = "" if row.slo is None else f" · SLO {bound(row.slo(now))}"
        cards.append(
            f'<div class="card"><small>{escape(group)} · {escape(row.title)}{limit}</small>'
            f'<p class="now {verdict}">{_value(row, shown[-1])}</p><p class="then">{then}</p></div>'
        )
    return f'<div class="cards">{"".join(cards)}</div>'


def _figures_table(shown: list[Shown]) -> str:
    heads = "".join(f"<th>{_swatch(item)}{escape(name_of(item.figures))}</th>" for item in shown)
    heads += "<th>change</th>" if len(shown) > 1 else ""
    lines = []
    group = ""
    for row in ROWS:
        first = row.group != group
        group = row.group
        cells = "".join(f"<td>{_value(row, item)}{_verdict(row, item)}</td>" for item in shown)
        cells += f"<td>{_change(row, shown)}</td>" if len(shown) > 1 else ""
        lines.append(
            f'<tr class="{"first" if first else ""}"><td class="group">{escape(row.group) if first else ""}</td>'
            f'<td class="names">{escape(row.title)}</td>{cells}</tr>'
        )
    return (
        f'<div class="scroll"><table><thead><tr><th></th><th class="names"></th>{heads}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _value(row: Row, item: Shown) -> str:
    text = show(row, item.figures)
    return f'<span class="unknown">{UNKNOWN}</span>' if text == UNKNOWN else escape(text)


def _verdict(row: Row, item: Shown) -> str:
    within = meets(row, item.figures)
    if within is None:
        return ""
    return ' <span class="better">✓</span>' if within else ' <span class="worse">✗</span>'


def _change(row: Row, shown: list[Shown]) -> str:
    text, direction = gain(row, shown[0].figures, shown[-1].figures)
    style = {1: "better", -1: "worse", 0: "unknown"}[direction]
    return f'<span class="{style}">{escape(text)}</span>'


def _swatch(item: Shown) -> str:
    return f'<span class="swatch" style="background:var(--{item.role})"></span>'


def _figures_html(charts: list[Chart]) -> str:
    figures = "".join(
        f'<figure class="{"wide" if chart.wide else ""}"><figcaption><h3>{escape(chart.title)}</h3>'
        f'<p class="caption">{escape(chart.caption)}</p></figcaption>'
        f'<div class="plot" id="plot-{chart.key}"></div></figure>'
        for chart in charts
    )
    return f'<div class="charts">{figures}</div>'


def _parts(shown: list[Shown]) -> str:
    return f'<div class="two">{"".join(_parts_table(item) for item in shown)}</div>'


def _parts_table(item: Shown) -> str:
    heads = ("sent", "in SLO", "TTFT P50", "TTFT P99", "ITL P99", "tokens/s")
    parts = {**item.figures.phases, **{f"{name} prompts": p for name, p in item.figures.classes.items()}}
    lines = "".join(f"<tr><td>{escape(name)}</td>{_part_cells(part)}</tr>" for name, part in parts.items())
    return (
        f'<div class="scroll"><table><thead><tr><th>{_swatch(item)}{escape(name_of(item.figures))}</th>'
        f"{''.join(f'<th>{head}</th>' for head in heads)}</tr></thead><tbody>{lines}</tbody></table></div>"
    )


def _part_cells(part: Figures) -> str:
    texts = (
        str(part.sent),
        UNKNOWN if part.goodput_share is None else share(part.goodput_share),
        *(
            UNKNOWN if value is None else milliseconds(value)
            for value in (part.ttft.p50_s, part.ttft.p99_s, part.itl.p99_s)
        ),
        UNKNOWN if part.output_tokens_per_s is None else count(part.output_tokens_per_s),
    )
    return "".join(f"<td>{text}</td>" for text in texts)


def _accounting(shown: list[Shown]) -> str:
    pairs = {}
    for item in shown:
        outcomes = ", ".join(f"{name} {number}" for name, number in item.figures.total.outcomes.items())
        pairs[name_of(item.figures)] = f"{accounting_line(item.figures.accounting)}. In the window: {outcomes}."
    return _pairs(pairs)


def _provenance(shown: list[Shown]) -> str:
    parts = []
    for item in shown:
        run = item.run
        lag = "unknown" if run.client_lag_p99_s is None else milliseconds(run.client_lag_p99_s)
        pairs = {
            "Run": run.id,
            "Started": run.started_at,
            "Seed": str(run.seed),
            "Hardware": run.hardware or UNKNOWN,
            "Instances": ", ".join(i.name + (f" ({i.gpus} GPUs)" if i.gpus else "") for i in run.instances) or UNKNOWN,
            "Price": f"{run.gpu_hour_price:g} {run.currency} per GPU-hour" if run.gpu_hour_price else UNKNOWN,
            "Offered, achieved": f"{run.offered_per_s:.2f} /s, {run.achieved_per_s:.2f} /s; send lag P99 {lag}",
            "Versions": ", ".join(f"{name} {version}" for name, version in run.versions.items()) or UNKNOWN,
        }
        notes = "".join(f"<li>{escape(note)}</li>" for note in run.notes)
        command = f"<p><code>{escape(run.command)}</code></p>" if run.command else ""
        heading = f"<h3>{_swatch(item)}{escape(name_of(item.figures))}</h3>"
        parts.append(f'<div class="card">{heading}{_pairs(pairs)}{command}<ul>{notes}</ul></div>')
    return f'<div class="two">{"".join(parts)}</div>'


def _pairs(pairs: dict[str, str]) -> str:
    return "<dl>" + "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in pairs.items()) + "</dl>"
