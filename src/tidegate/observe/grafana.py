"""Grafana's dashboard model, as far as the boards need it: panels, rows, variables, laid out on the 24-column grid.

In: titles and PromQL. Out: JSON values of Grafana's dashboard schema 39 (Grafana 10.2 and newer). Panels name their
data source through the variable `datasource`, so that a board can be imported anywhere.
"""

from __future__ import annotations

from typing import Any, Final

SCHEMA_VERSION: Final = 39
COLUMNS: Final = 24
SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
OPEN_END: Final = None
"""A threshold step without a lower bound is Grafana's base step."""

Json = dict[str, Any]


class Query:
    """One PromQL expression and the legend of its series."""

    __slots__ = ("expr", "legend")

    def __init__(self, expr: str, legend: str = "") -> None:
        self.expr = expr
        self.legend = legend


def timeseries(title: str, unit: str, queries: list[Query], text: str = "", **shape: Any) -> Json:
    """Lines over time. `limit` draws a threshold, `stack` stacks, `top` fixes the axis' end, `width` is in columns."""
    limit = shape.get("limit")
    custom: Json = {
        "drawStyle": "line",
        "lineWidth": 2,
        "fillOpacity": 18 if shape.get("stack") else 6,
        "showPoints": "never",
        "spanNulls": False,
        "stacking": {"group": "A", "mode": "normal" if shape.get("stack") else "none"},
        "thresholdsStyle": {"mode": "dashed" if limit is not None else "off"},
    }
    defaults: Json = {"unit": unit, "min": 0, "custom": custom, "thresholds": _thresholds(limit)}
    if "top" in shape:
        defaults["max"] = shape["top"]
    panel = _panel("timeseries", title, queries, text, defaults, shape.get("width", 12), 8)
    panel["options"] = {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return panel


def stat(title: str, unit: str, query: Query, text: str = "", **shape: Any) -> Json:
    """One figure, red beyond `limit` (below it with `low`)."""
    limit, low = shape.get("limit"), shape.get("low", False)
    defaults: Json = {"unit": unit, "thresholds": _thresholds(limit, low)}
    panel = _panel("stat", title, [query], text, defaults, shape.get("width", 4), 4)
    panel["options"] = {
        "colorMode": "value" if limit is not None else "none",
        "graphMode": "area",
        "justifyMode": "auto",
        "orientation": "auto",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "textMode": "auto",
    }
    return panel


def row(title: str) -> Json:
    """A heading across the board."""
    return {"type": "row", "title": title, "collapsed": False, "panels": [], "gridPos": {"h": 1, "w": COLUMNS}}


def variable(name: str, label: str, query: str, **more: Any) -> Json:
    """A variable whose values Prometheus knows; all of them unless some are chosen."""
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        **more,
    }


def board(uid: str, title: str, text: str, variables: list[Json], panels: list[Json]) -> Json:
    """A whole dashboard; panels are placed from left to right, top to bottom, and numbered."""
    _place(panels)
    source = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "refresh": 1}
    links = {
        "title": "Tidegate", "type": "dashboards", "tags": ["tidegate"], "asDropdown": True, "includeVars": True,
        "keepTime": True, "icon": "external link", "targetBlank": False, "tooltip": "", "url": "",
    }  # fmt: skip
    return {
        "uid": uid,
        "title": title,
        "description": text,
        "tags": ["tidegate"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "links": [links],
        "templating": {"list": [source, *variables]},
        "annotations": {"list": [_alerts()]},
        "panels": panels,
    }


def _alerts() -> Json:
    """Alerts that were firing, as marks on every panel."""
    return {
        "name": "Alerts",
        "datasource": SOURCE,
        "enable": True,
        "hide": False,
        "iconColor": "red",
        "expr": 'ALERTS{alertname=~"Tidegate.*",alertstate="firing"}',
    }


def _panel(kind: str, title: str, queries: list[Query], text: str, defaults: Json, width: int, height: int) -> Json:
    return {
        "type": kind,
        "title": title,
        "description": text,
        "datasource": SOURCE,
        "gridPos": {"h": height, "w": width},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "datasource": SOURCE,
                "expr": query.expr,
                "legendFormat": query.legend or "__auto",
                "range": True,
            }
            for number, query in enumerate(queries)
        ],
    }


def _thresholds(limit: float | None, low: bool = False) -> Json:
    steps: list[Json] = [{"color": "red" if low and limit is not None else "green", "value": OPEN_END}]
    if limit is not None:
        steps.append({"color": "green" if low else "red", "value": limit})
    return {"mode": "absolute", "steps": steps}


def _place(panels: list[Json]) -> None:
    x = y = height = 0
    for number, panel in enumerate(panels, 1):
        place = panel["gridPos"]
        if x + place["w"] > COLUMNS:
            x, y, height = 0, y + height, 0
        panel["id"] = number
        place |= {"x": x, "y": y}
        x, height = x + place["w"], max(height, place["h"])
