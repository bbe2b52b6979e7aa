"""The tune's one-file HTML page: winner, Pareto front, importance, neighbours, ranking. Opens offline.

In: a `TuneReport`. Out: HTML text in the look of the run report. Everything a user wrote is escaped.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from html import escape
from importlib import resources
from typing import Any, Final

import msgspec

from tidegate import __version__
from tidegate.errors import UnavailableError
from tidegate.report.charts import Chart, Spec
from tidegate.report.rows import bound
from tidegate.tune.outcome import RANKED, TuneReport, cells_of, front
from tidegate.tune.verdict import Judged

_SCRIPT_SAFE: Final = ("<", "\\u003c")


def page(report: TuneReport) -> str:
    """The page. Raises `UnavailableError` where plotly is not installed."""
    charts = [_pareto(report)] + ([_importance(report)] if report.importance else [])
    title = "Tune: " + ("no setting keeps the SLO" if report.winner is None else "a winner")
    specs = msgspec.json.encode({chart.key: chart.spec for chart in charts}).decode().replace(*_SCRIPT_SAFE)
    return "\n".join([
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{title} · Tidegate</title><style>{_asset('page.css')}</style></head><body><main>",
        _head(report, title),
        "<h2>Settings</h2>", _settings(report),
        "<h2>Charts</h2>", _figures(charts),
        "<h2>One step away, and why not</h2>", _neighbours(report),
        f"<h2>The best {RANKED}</h2>", _ranking(report),
        f"<footer>Tidegate {escape(__version__)}. Charts by plotly.js (MIT), inside this file.</footer></main>",
        f'<script type="application/json" id="charts">{specs}</script>',
        f"<script>{_plotly_js()}</script><script>{_asset('page.js')}</script></body></html>",
    ])  # fmt: skip


def _asset(name: str) -> str:
    return resources.files("tidegate.report").joinpath(name).read_text(encoding="utf-8")


def _plotly_js() -> str:
    try:
        source: str = importlib.import_module("plotly.offline").get_plotlyjs()
    except ImportError as exc:
        hint = 'pip install "tidegate[report]"'
        raise UnavailableError("the HTML page needs plotly, which is not installed", hint=hint) from exc
    return source


def _head(report: TuneReport, title: str) -> str:
    lead = (
        f"SLO: P99 TTFT within {bound(report.slo.ttft_s)}, P99 ITL within {bound(report.slo.itl_s)}. "
        f"{report.evaluations} settings of {report.points:,} were run; goal: {report.goal}; seed {report.seed}."
    )
    notes = "".join(f'<p class="warning">{escape(line)}</p>' for line in report.explanation)
    return (
        f'<header><p class="mark">Tidegate · Tune</p><h1>{escape(title)}</h1>'
        f'<span class="badge">SIMULATED</span></header><p class="lead">{lead}</p>{notes}'
    )


def _settings(report: TuneReport) -> str:
    if report.winner is None:
        return "<p>There is none to show.</p>"
    rows = [
        (name, value, report.start.get(name, ""), f"{report.importance.get(name, 0.0):.0%}")
        for name, value in report.winner.setting.items()
    ]
    return _table(("knob", "winner", "before", "importance"), rows)


def _neighbours(report: TuneReport) -> str:
    rows = [(one.knob, one.value, one.why) for one in report.neighbours]
    return _table(("knob", "value", "why it is not the winner"), rows) if rows else "<p>None were judged.</p>"


def _ranking(report: TuneReport) -> str:
    free = report.free
    rows = [(*cells_of(one), *(one.setting[name] for name in free)) for one in report.ranking[:RANKED]]
    return _table(("goodput", "P99 TTFT", "P99 ITL", "why not", *free), rows)


def _table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    top = "".join(f'<th class="names">{escape(head)}</th>' for head in heads)
    body = "".join(
        "<tr>" + "".join(f'<td class="names">{escape(str(cell))}</td>' for cell in row) + "</tr>" for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _figures(charts: list[Chart]) -> str:
    inner = "".join(
        f'<figure class="wide"><figcaption><h3>{escape(chart.title)}</h3>'
        f'<p class="caption">{escape(chart.caption)}</p></figcaption>'
        f'<div class="plot" id="plot-{chart.key}"></div></figure>'
        for chart in charts
    )
    return f'<div class="charts">{inner}</div>'


def _pareto(report: TuneReport) -> Chart:
    ran = [one for one in report.ranking if one.results is not None and one.results.itl_p99_s is not None]
    groups = {
        "keeps the SLO": ("good", [one for one in ran if one.feasible]),
        "misses it": ("gone", [one for one in ran if not one.feasible]),
    }
    data: list[dict[str, Any]] = [_points(name, role, ones) for name, (role, ones) in groups.items() if ones]
    line = front(ran)
    data.append({
        "type": "scatter", "mode": "lines", "name": "Pareto front", "hoverinfo": "skip",
        "x": [_itl_ms(one) for one in line], "y": [_goodput(one) for one in line],
        "line": {"color": "after", "width": 2, "shape": "hv"},
    })  # fmt: skip
    if report.winner is not None:
        results = report.winner.results
        data.append({
            "type": "scatter", "mode": "markers", "name": "winner, worst seed",
            "x": [(results.itl_p99_s or 0.0) * 1e3], "y": [results.goodput],
            "marker": {"color": "slo", "size": 14, "symbol": "star"},
        })  # fmt: skip
    edge = report.slo.itl_s * 1e3
    layout: Spec = {
        "xaxis": {"type": "log"},
        "yaxis": {"range": [0, 1.05], "tickformat": ".0%"},
        "shapes": [{"type": "line", "yref": "paper", "y0": 0, "y1": 1, "x0": edge, "x1": edge,
                    "line": {"width": 1.5, "color": "slo", "dash": "dash"}}],
    }  # fmt: skip
    caption = "Each point is a setting that ran to the end: P99 ITL against goodput. Up and left is better."
    return Chart("pareto", "Goodput against the longest gaps", caption, {"data": data, "layout": layout}, wide=True)


def _points(name: str, role: str, ones: list[Judged]) -> dict[str, Any]:
    return {
        "type": "scatter", "mode": "markers", "name": name, "marker": {"color": role, "size": 8},
        "x": [_itl_ms(one) for one in ones], "y": [_goodput(one) for one in ones],
        "text": ["<br>".join(f"{knob}: {value}" for knob, value in one.setting.items()) for one in ones],
        "hovertemplate": "%{x:.1f} ms, %{y:.1%}<br>%{text}<extra></extra>",
    }  # fmt: skip


def _importance(report: TuneReport) -> Chart:
    names = list(report.importance)[::-1]
    data = [{"type": "bar", "orientation": "h", "name": "importance", "x": [report.importance[name] for name in names],
             "y": names, "marker": {"color": "after"}, "hovertemplate": "%{y}: %{x:.0%}<extra></extra>"}]  # fmt: skip
    layout: Spec = {"xaxis": {"tickformat": ".0%"}, "yaxis": {}}
    caption = "How much each knob decides whether a setting is among the best (PED-ANOVA over all that was judged)."
    return Chart("importance", "What matters", caption, {"data": data, "layout": layout}, wide=True)


def _itl_ms(one: Judged) -> float:
    assert one.results is not None
    assert one.results.itl_p99_s is not None
    return one.results.itl_p99_s * 1e3


def _goodput(one: Judged) -> float:
    assert one.results is not None
    return one.results.goodput or 0.0
