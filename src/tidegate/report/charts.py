"""Charts as plain plotly specifications (`{"data": […], "layout": {…}}`), coloured by role and themed by the page.

Colours are roles (`before`, `after`, `good` …) that the page's script turns into the light or dark palette.
"""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from statistics import median
from typing import Any, Final, NamedTuple

from tidegate.report.rows import bound
from tidegate.report.series import (
    GROUPS,
    Line,
    Steps,
    itl_cdf,
    itl_over_time,
    outcomes_over_time,
    ttft_cdf,
    ttft_over_time,
)
from tidegate.report.table import name_of
from tidegate.traffic.figures import Figures, RunFigures, phase_marks
from tidegate.traffic.record import RunRecord

Spec = dict[str, Any]

ROLES: Final = ("before", "after")
_GROUP_ROLES: Final = {"completed": "good", "rejected": "held", "error": "bad", "cancelled": "gone"}
_BUSY_FACTOR: Final = 1.5


class Shown(NamedTuple):
    """A run and its figures, as the page shows them."""

    run: RunRecord
    figures: RunFigures
    role: str


class Chart(NamedTuple):
    """A chart with its heading and one line on how to read it."""

    key: str
    title: str
    caption: str
    spec: Spec
    wide: bool = False


def all_charts(shown: list[Shown]) -> list[Chart]:
    """Every chart that these runs allow."""
    charts = [_goodput(shown), _latency("ttft", "TTFT over time", shown, _ttft_lines, shown[0].figures.slo_ttft_s)]
    if any(itl_over_time(item.run) for item in shown):
        charts.append(_latency("itl", "Inter-token latency over time", shown, _itl_lines, shown[0].figures.slo_itl_s))
    charts += [_outcomes(item) for item in shown]
    charts.append(_cdf("ttft-cdf", "TTFT, cumulative", shown, ttft_cdf, shown[0].figures.slo_ttft_s))
    charts.append(_cdf("itl-cdf", "Inter-token latency, cumulative", shown, itl_cdf, shown[0].figures.slo_itl_s))
    return charts


def _legend(item: Shown) -> str:
    """The run's name for a chart, which takes tags for formatting."""
    return escape(name_of(item.figures))


def _goodput(shown: list[Shown]) -> Chart:
    names = ["all", *shown[0].figures.phases, *(f"{name} prompts" for name in shown[0].figures.classes)]
    data = []
    for item in shown:
        parts: dict[str, Figures] = {"all": item.figures.total, **item.figures.phases}
        parts |= {f"{name} prompts": part for name, part in item.figures.classes.items()}
        shares = [parts[name].goodput_share if name in parts else None for name in names]
        data.append({
            "type": "bar", "name": _legend(item), "x": list(map(escape, names)), "y": shares,
            "marker": {"color": item.role},
            "text": ["" if share is None else f"{share:.0%}" for share in shares], "textposition": "outside",
            "cliponaxis": False, "hovertemplate": "%{x}: %{y:.1%}<extra>%{fullData.name}</extra>",
        })  # fmt: skip
    layout: Spec = {
        "barmode": "group",
        "bargap": 0.35,
        "xaxis": {"showgrid": False},
        "yaxis": {"range": [0, 1.08], "tickformat": ".0%"},
    }
    caption = "Share of all sent requests that met every SLO. Rejections and failures count against it."
    return Chart("goodput", "Goodput", caption, {"data": data, "layout": layout}, wide=True)


def _latency(
    key: str, title: str, shown: list[Shown], lines: Callable[[Shown], list[tuple[str, Line]]], slo_s: float
) -> Chart:
    data = []
    for item in shown:
        for label, line in lines(item):
            data.append({
                "type": "scatter", "mode": _MODES[key], "name": f"{_legend(item)} {label}", "x": line.x_s,
                "y": line.y_ms, "line": {"color": item.role, "width": 2, "dash": _DASHES[label]},
                    "marker": {"color": item.role, "size": 4},
                "hovertemplate": "%{x:.1f} s: %{y:,.0f} ms<extra>%{fullData.name}</extra>",
            })  # fmt: skip
    shapes, notes = _phases(shown[0].run)
    layout: Spec = {
        "xaxis": {"ticksuffix": " s", "range": list(shown[0].run.window_s)},
        "yaxis": {"type": "log"},
        "shapes": [*shapes, _slo_line(slo_s, "y")],
        "annotations": [*notes, _slo_note(slo_s, "y")],
    }
    return Chart(key, title, _LATENCY_CAPTIONS[key], {"data": data, "layout": layout}, wide=True)


_MODES: Final = {"ttft": "lines+markers", "itl": "lines"}
_DASHES: Final = {"P50": "dot", "P99": "solid"}
_LATENCY_CAPTIONS: Final = {
    "ttft": "By the moment a request was meant to be sent; log scale. Shaded: phases with the most traffic.",
    "itl": "By the moment a token came; log scale. A reader feels P99 as stutter.",
}


def _ttft_lines(item: Shown) -> list[tuple[str, Line]]:
    binned = ttft_over_time(item.run)
    return [("P50", binned.line(50)), ("P99", binned.line(99))]


def _itl_lines(item: Shown) -> list[tuple[str, Line]]:
    binned = itl_over_time(item.run)
    return [] if binned is None else [("P50", binned.line(50)), ("P99", binned.line(99))]


def _outcomes(item: Shown) -> Chart:
    x_s, counts = outcomes_over_time(item.run)
    data = [
        {
            "type": "bar", "name": group, "x": x_s, "y": counts[group], "marker": {"color": _GROUP_ROLES[group]},
            "hovertemplate": "%{x:.1f} s: %{y}<extra>%{fullData.name}</extra>",
        }
        for group in GROUPS
        if any(counts[group])
    ]  # fmt: skip
    shapes, notes = _phases(item.run)
    layout: Spec = {
        "barmode": "stack",
        "bargap": 0,
        "xaxis": {"ticksuffix": " s", "range": list(item.run.window_s)},
        "yaxis": {},
        "shapes": shapes,
        "annotations": notes,
    }
    name = name_of(item.figures)
    caption = "How the requests of each moment ended."
    return Chart(f"outcomes-{item.role}", f"Outcomes: {name}", caption, {"data": data, "layout": layout})


def _cdf(key: str, title: str, shown: list[Shown], steps: Callable[[RunRecord], Steps], slo_s: float) -> Chart:
    data = []
    for item in shown:
        line = steps(item.run)
        data.append({
            "type": "scatter", "mode": "lines", "name": _legend(item), "x": line.x_ms, "y": line.share,
            "line": {"color": item.role, "width": 2, "shape": "hv"},
            "hovertemplate": "%{y:.1%} within %{x:,.0f} ms<extra>%{fullData.name}</extra>",
        })  # fmt: skip
    layout: Spec = {
        "xaxis": {"type": "log"},
        "yaxis": {"range": [0, 1.02], "tickformat": ".0%"},
        "shapes": [_slo_line(slo_s, "x")],
        "annotations": [_slo_note(slo_s, "x")],
    }
    return Chart(key, title, _CDF_CAPTIONS[key], {"data": data, "layout": layout})


_CDF_CAPTIONS: Final = {
    "ttft-cdf": "Of all streamed requests sent; those that failed or were rejected keep the line below 100 %.",
    "itl-cdf": "Of all tokens after the first.",
}


def _phases(run: RunRecord) -> tuple[list[Spec], list[Spec]]:
    """Shading for the busiest phases, a hairline at every other boundary, and the names."""
    marks = phase_marks(run)
    rates = [
        sum(mark.start_s <= r.plan.at_s < mark.end_s for r in run.requests) / max(1e-9, mark.end_s - mark.start_s)
        for mark in marks
    ]
    shapes: list[Spec] = []
    notes: list[Spec] = []
    for mark, rate in zip(marks, rates):
        busy = rate > _BUSY_FACTOR * median(rates)
        across = {"yref": "paper", "y0": 0, "y1": 1, "layer": "below"}
        if busy:
            shapes.append({"type": "rect", "x0": mark.start_s, "x1": mark.end_s, "line": {"width": 0},
                           "fillcolor": "shade", **across})  # fmt: skip
        elif mark.start_s > run.window_s[0]:
            shapes.append({"type": "line", "x0": mark.start_s, "x1": mark.start_s,
                           "line": {"width": 1, "color": "rule", "dash": "dot"}, **across})  # fmt: skip
        rate_text = f"{rate:.0f}/s" if rate >= 10 else f"{rate:.1f}/s"
        notes.append({"x": mark.start_s, "y": 1.0, "yref": "paper", "xanchor": "left", "yanchor": "bottom",
                      "text": f"{escape(mark.name)} {rate_text}", "showarrow": False,
                      "font": {"size": 11}})  # fmt: skip
    return shapes, notes


def _slo_line(slo_s: float, axis: str) -> Spec:
    line = {"width": 1.5, "color": "slo", "dash": "dash"}
    if axis == "y":
        return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": slo_s * 1e3, "y1": slo_s * 1e3, "line": line}
    return {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "x0": slo_s * 1e3, "x1": slo_s * 1e3, "line": line}


def _slo_note(slo_s: float, axis: str) -> Spec:
    """Annotations on a log axis are placed by the logarithm; the page's script knows by `log`."""
    text = f"SLO {bound(slo_s)}"
    note: Spec = {"text": text, "showarrow": False, "font": {"size": 11, "color": "slo"}, "log": axis}
    if axis == "y":
        return note | {"xref": "paper", "x": 1, "xanchor": "right", "y": slo_s * 1e3, "yanchor": "bottom"}
    return note | {"yref": "paper", "y": 0.02, "yanchor": "bottom", "x": slo_s * 1e3, "xanchor": "left"}
