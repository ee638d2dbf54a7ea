"""A board in the format that Grafana stores (dashboard schema 41)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from deploy.grafana.boards.panels import Board, Panel, Row, Variable
from deploy.grafana.boards.promql import WINDOW, selected

Json = dict[str, Any]

DATASOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}
GRID_COLUMNS = 24
PANELS_IN_A_LINE = 4
PANEL_HEIGHT = 8
# Grafana's numbers for "when the time range changes" and "alphabetically".
REFRESH_ON_TIME_RANGE = 2
SORT_ALPHABETICAL = 1

# How much time a page shows, unless its reader chooses another.
RANGE = "30m"
BUILD = selected("gatefuse_build_info")
# Name, colour and query of the marks on every picture.
ANNOTATIONS = (
    ("Drains", "orange", f"max by (instance, process) ({selected('gatefuse_drain_state')}) == 1"),
    (
        "Deployments",
        "blue",
        # Not seen before in all the time that the page shows: a scrape that failed is no deployment.
        f"group by (instance, version) ({BUILD}) unless group by (instance, version) "
        f"(present_over_time({BUILD}[$__range] offset {WINDOW}))",
    ),
)


def board_json(board: Board) -> Json:
    """The whole page."""
    return {
        "uid": board.uid,
        "title": board.title,
        "description": board.description,
        "tags": ["gatefuse"],
        "schemaVersion": 41,
        "editable": False,
        # A crosshair on all panels at once.
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": f"now-{RANGE}", "to": "now"},
        "links": [_links_to_the_others()],
        "annotations": {"list": [_annotation_json(*annotation) for annotation in ANNOTATIONS]},
        "templating": {
            "list": [_datasource_json(), *(_variable_json(v) for v in board.variables)],
        },
        "panels": _grid(board.rows),
    }


def _links_to_the_others() -> Json:
    return {
        "type": "dashboards",
        "title": "Gatefuse",
        "icon": "external link",
        "tooltip": "The other boards, at the same time",
        "url": "",
        "tags": ["gatefuse"],
        "asDropdown": True,
        "targetBlank": False,
        "includeVars": True,
        "keepTime": True,
    }


def _annotation_json(name: str, colour: str, expression: str) -> Json:
    return {
        "name": name,
        "datasource": DATASOURCE,
        "enable": True,
        "iconColor": colour,
        "expr": expression,
    }


def _datasource_json() -> Json:
    return {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
    }


def _variable_json(variable: Variable) -> Json:
    common: Json = {
        "name": variable.name,
        "label": variable.label,
        "description": variable.description,
    }
    if not variable.query:
        value = {"text": variable.default, "value": variable.default}
        return {**common, "type": "textbox", "query": variable.default, "current": value}
    return {
        **common,
        "type": "query",
        "datasource": DATASOURCE,
        "query": variable.query,
        "refresh": REFRESH_ON_TIME_RANGE,
        "sort": SORT_ALPHABETICAL,
        "multi": True,
        "includeAll": True,
        "allValue": variable.everything,
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _grid(rows: Sequence[Row]) -> list[Json]:
    placed: list[Json] = []
    y = 0
    for row in rows:
        placed.append(
            {
                "id": len(placed) + 1,
                "type": "row",
                "title": row.title,
                "collapsed": False,
                "gridPos": {"x": 0, "y": y, "w": GRID_COLUMNS, "h": 1},
                "panels": [],
            }
        )
        y += 1
        for line in lines_of(row):
            width = GRID_COLUMNS // len(line)
            for position, panel in enumerate(line):
                place = {"x": position * width, "y": y, "w": width, "h": PANEL_HEIGHT}
                placed.append(_panel_json(panel, len(placed) + 1, place))
            y += PANEL_HEIGHT
    return placed


def lines_of(row: Row) -> list[tuple[Panel, ...]]:
    """The row's panels in lines as equal as can be, none longer than the page is wide."""
    count = -(-len(row.panels) // PANELS_IN_A_LINE)
    ends = [round(len(row.panels) * line / count) for line in range(count + 1)]
    return [row.panels[start:end] for start, end in pairwise(ends)]


def _panel_json(panel: Panel, number: int, place: Json) -> Json:
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": _field_json(panel), "overrides": []},
        "options": _OPTIONS[panel.kind](panel),
        "transformations": _TABLE_COLUMNS if panel.kind == "table" else [],
        "targets": [
            {
                "refId": chr(ord("A") + position),
                "datasource": DATASOURCE,
                "expr": query.expression,
                "legendFormat": query.legend,
                "format": _FORMATS.get(panel.kind, "time_series"),
                "instant": panel.kind in ("stat", "table"),
                "range": panel.kind not in ("stat", "table"),
            }
            for position, query in enumerate(panel.queries)
        ],
    }


_FORMATS = {"heatmap": "heatmap", "table": "table"}
_TABLE_COLUMNS: list[Json] = [
    {"id": "organize", "options": {"excludeByName": {"Time": True}, "renameByName": {}}}
]


def _field_json(panel: Panel) -> Json:
    field: Json = {"unit": panel.unit}
    if panel.minimum is not None and panel.kind != "table" and not panel.logarithmic:
        field["min"] = panel.minimum
    if panel.maximum is not None:
        field["max"] = panel.maximum
    if panel.kind == "timeseries":
        field["custom"] = {
            "fillOpacity": 20 if panel.stacked else 0,
            "stacking": {"mode": "normal" if panel.stacked else "none"},
            "showPoints": "never",
            "scaleDistribution": {"type": "log", "log": 10}
            if panel.logarithmic
            else {"type": "linear"},
        }
    if panel.limits:
        field["color"] = {"mode": "thresholds"}
        field["thresholds"] = {"mode": "absolute", "steps": _steps(panel.limits)}
    return field


def _steps(limits: tuple[float, ...]) -> list[Json]:
    """Grafana's steps go upwards, from a base without a value."""
    colours = ["green", "orange", "red"] if len(limits) > 1 else ["green", "red"]
    if list(limits) != sorted(limits):
        colours.reverse()
    values = [None, *sorted(limits)]
    return [{"value": v, "color": c} for v, c in zip(values, colours, strict=True)]


def _timeseries_options(_: Panel) -> Json:
    return {
        "legend": {
            "displayMode": "list",
            "placement": "bottom",
            "showLegend": True,
            "calcs": [],
        },
        "tooltip": {"mode": "multi", "sort": "desc"},
    }


def _heatmap_options(panel: Panel) -> Json:
    return {
        "calculate": False,
        "yAxis": {"unit": panel.unit},
        "color": {"mode": "scheme", "scheme": "Blues", "steps": 64},
    }


def _stat_options(panel: Panel) -> Json:
    return {
        "graphMode": "none",
        "colorMode": "value" if panel.limits else "none",
        "textMode": "value" if len(panel.queries) == 1 and not _many(panel) else "auto",
        "reduceOptions": {"values": False, "calcs": ["lastNotNull"], "fields": ""},
    }


def _many(panel: Panel) -> bool:
    """True where the legend names a label: there may be one number for each of its values."""
    return any("{{" in query.legend for query in panel.queries)


def _table_options(_: Panel) -> Json:
    return {"showHeader": True, "cellHeight": "sm"}


_OPTIONS = {
    "timeseries": _timeseries_options,
    "heatmap": _heatmap_options,
    "stat": _stat_options,
    "table": _table_options,
}
