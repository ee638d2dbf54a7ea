"""Writes the Grafana dashboard from the short descriptions below.

python deploy/grafana/generate.py            write dashboards/service.json
python deploy/grafana/generate.py --check    exit 1 if that file is not what would be written
python deploy/grafana/generate.py --rules    print the queries as recording rules, for promtool
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

TARGET = Path(__file__).resolve().parent / "dashboards" / "service.json"
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
GRID_COLUMNS = 24
PANEL_HEIGHT = 8
MODEL = 'model=~"$model"'
INFER = 'method="ModelInfer"'

Json = dict[str, Any]


@dataclass(frozen=True)
class Query:
    """One PromQL expression and the name of the lines it draws."""

    expression: str
    legend: str


@dataclass(frozen=True)
class Panel:
    """One picture: a question as its title, the answer's unit, how to read it, and its queries."""

    title: str
    unit: str
    description: str
    queries: tuple[Query, ...]
    kind: Literal["timeseries", "heatmap"] = "timeseries"
    stacked: bool = False
    maximum: float | None = None


@dataclass(frozen=True)
class Row:
    """Panels side by side under one heading."""

    title: str
    panels: tuple[Panel, ...]


def rate(metric: str, *matchers: str) -> str:
    """The per-second rate over an interval that Grafana fits to zoom and scrape interval."""
    return f"rate({metric}{{{','.join(matchers)}}}[$__rate_interval])"


def total(by: str, series: str) -> str:
    """The sum over every other label."""
    return f"sum by ({by}) ({series})"


def ratio(by: str, above: str, below: str) -> str:
    """A ratio of sums, never a mean of ratios."""
    return f"{total(by, above)} / {total(by, below)}"


def quantile(q: float, histogram: str, *matchers: str, by: str = "") -> str:
    """A quantile of a histogram, one line for each value of the label `by`."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({q}, {total(labels, rate(f'{histogram}_bucket', *matchers))})"


ROWS = (
    Row(
        "What clients see",
        (
            Panel(
                "Requests per second, by status",
                "reqps",
                "Finished ModelInfer calls by gRPC status code, of all models.",
                (Query(total("code", rate("gatefuse_requests_total", INFER)), "{{code}}"),),
                stacked=True,
            ),
            Panel(
                "Latency of answered requests",
                "s",
                "Time in the server of calls that were answered OK, of all models: from the "
                "request's arrival until its answer is handed to gRPC. The network is not in it.",
                tuple(
                    Query(
                        quantile(q, "gatefuse_request_duration_seconds", INFER, 'outcome="ok"'),
                        name,
                    )
                    for q, name in ((0.5, "p50"), (0.99, "p99"))
                ),
            ),
            Panel(
                "Rows per second",
                "rowsps",
                "Rows computed, by model. A request carries one row or many, so this is the "
                "measure of work.",
                (Query(total("model", rate("gatefuse_batch_rows_sum", MODEL)), "{{model}}"),),
            ),
            Panel(
                "Refused before compute",
                "reqps",
                "Requests that were turned away because a queue was full, a deadline had passed, "
                "the server was draining or no worker was ready.",
                (Query(total("reason", rate("gatefuse_requests_shed_total")), "{{reason}}"),),
                stacked=True,
            ),
        ),
    ),
    Row(
        "Batching",
        (
            Panel(
                "How full is the queue",
                "percentunit",
                "Waiting rows over the rows that may wait. At 100 % the next request is refused "
                "with RESOURCE_EXHAUSTED.",
                (
                    Query(
                        ratio(
                            "model",
                            f"gatefuse_queue_rows{{{MODEL}}}",
                            f"gatefuse_queue_capacity_rows{{{MODEL}}}",
                        ),
                        "{{model}}",
                    ),
                ),
                maximum=1,
            ),
            Panel(
                "Wait in the queue, p99",
                "s",
                "From a request's admission until its batch is sealed.",
                (
                    Query(
                        quantile(0.99, "gatefuse_queue_wait_seconds", MODEL, by="model"),
                        "{{model}}",
                    ),
                ),
            ),
            Panel(
                "Rows per batch",
                "short",
                "How many rows went to a device together, of the chosen models. Under load it "
                "climbs towards max_batch_rows: batches grow while every worker is busy.",
                (
                    Query(
                        "sum by (le) (increase(gatefuse_batch_rows_bucket"
                        f"{{{MODEL}}}[$__rate_interval]))",
                        "{{le}}",
                    ),
                ),
                kind="heatmap",
            ),
            Panel(
                "Why batches were sealed",
                "ops",
                "Batches per second by what closed them.",
                (Query(total("trigger", rate("gatefuse_batches_total")), "{{trigger}}"),),
                stacked=True,
            ),
        ),
    ),
    Row(
        "What fusion buys",
        (
            Panel(
                "Latency by backend, p50",
                "s",
                "The same weights and the same load, fused, eager and compiled side by side: time "
                "in the server of answered requests.",
                (
                    Query(
                        quantile(0.5, "gatefuse_inference_duration_seconds", MODEL, by="backend"),
                        "{{backend}}",
                    ),
                ),
            ),
            Panel(
                "Device time per batch",
                "s",
                "Seconds the device was busy, over batches: the kernels and the copies, without "
                "queue or network.",
                (
                    Query(
                        ratio(
                            "backend",
                            rate("gatefuse_device_busy_seconds_total", MODEL),
                            rate("gatefuse_batch_rows_count", MODEL),
                        ),
                        "{{backend}}",
                    ),
                ),
            ),
            Panel(
                "Kernel launches per batch",
                "short",
                "Flat lines at the number a backend is built for. The first minute after a model's "
                "first batch reads low: what a series counted before its first scrape is not seen.",
                (
                    Query(
                        ratio(
                            "backend",
                            rate("gatefuse_kernel_launches_total", MODEL),
                            rate("gatefuse_batch_rows_count", MODEL),
                        ),
                        "{{backend}}",
                    ),
                ),
            ),
            Panel(
                "Bytes moved per row",
                "bytes",
                "Modelled memory traffic over rows: the least that the launched kernels must read "
                "and write. It falls as batches grow, one read of the weights serves more rows.",
                (
                    Query(
                        ratio(
                            "backend",
                            rate("gatefuse_dram_bytes_modelled_total", MODEL),
                            rate("gatefuse_batch_rows_sum", MODEL),
                        ),
                        "{{backend}}",
                    ),
                ),
            ),
        ),
    ),
    Row(
        "Workers",
        (
            Panel(
                "Replicas by state",
                "short",
                "Workers by what they are doing. Only ready ones are given batches.",
                (Query("sum by (state) (gatefuse_replicas)", "{{state}}"),),
                stacked=True,
            ),
            Panel(
                "Restarts",
                "short",
                "Workers replaced, by cause. Their requests were run again elsewhere.",
                (
                    Query(
                        "sum by (cause) "
                        "(increase(gatefuse_replica_restarts_total[$__rate_interval]))",
                        "{{cause}}",
                    ),
                ),
            ),
            Panel(
                "Requests in flight",
                "short",
                "Calls that started and have not finished, by method.",
                (Query("sum by (method) (gatefuse_requests_in_flight)", "{{method}}"),),
            ),
        ),
    ),
)


def panel_json(panel: Panel, number: int, x: int, y: int, width: int) -> Json:
    """One panel as Grafana stores it."""
    heatmap = panel.kind == "heatmap"
    defaults: Json = {"unit": panel.unit, "min": 0}
    if panel.maximum is not None:
        defaults["max"] = panel.maximum
    if heatmap:
        options: Json = {
            "calculate": False,
            "yAxis": {"unit": panel.unit},
            "color": {"mode": "scheme", "scheme": "Blues", "steps": 64},
        }
    else:
        defaults["custom"] = {
            "fillOpacity": 20 if panel.stacked else 0,
            "stacking": {"mode": "normal" if panel.stacked else "none"},
            "showPoints": "never",
        }
        options = {
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "gridPos": {"x": x, "y": y, "w": width, "h": PANEL_HEIGHT},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": [
            {
                "refId": chr(ord("A") + position),
                "datasource": DATASOURCE,
                "expr": query.expression,
                "legendFormat": query.legend,
                "format": "heatmap" if heatmap else "time_series",
            }
            for position, query in enumerate(panel.queries)
        ],
    }


def grid(rows: Sequence[Row]) -> list[Json]:
    """The panels of all rows, each row's side by side over the full width."""
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
        width = GRID_COLUMNS // len(row.panels)
        for position, panel in enumerate(row.panels):
            placed.append(panel_json(panel, len(placed) + 1, position * width, y + 1, width))
        y += 1 + PANEL_HEIGHT
    return placed


def dashboard() -> Json:
    """The whole dashboard."""
    return {
        "uid": "gatefuse-service",
        "title": "Gatefuse service",
        "tags": ["gatefuse"],
        "schemaVersion": 41,
        "editable": False,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {
            "list": [
                {
                    "name": "datasource",
                    "label": "Data source",
                    "type": "datasource",
                    "query": "prometheus",
                },
                {
                    "name": "model",
                    "label": "Model",
                    "type": "query",
                    "datasource": DATASOURCE,
                    "query": "label_values(gatefuse_queue_capacity_rows, model)",
                    "refresh": 2,
                    "sort": 1,
                    "multi": True,
                    "includeAll": True,
                    "current": {"text": ["All"], "value": ["$__all"]},
                },
            ]
        },
        "panels": grid(ROWS),
    }


def rules() -> Json:
    """The queries as recording rules, Grafana's variables filled in: promtool parses those."""
    expressions = [query.expression for row in ROWS for p in row.panels for query in p.queries]
    filled = [
        text.replace("$__rate_interval", "1m").replace("$model", ".*") for text in expressions
    ]
    return {
        "groups": [
            {
                "name": "dashboard",
                "rules": [
                    {"record": f"dashboard:query:{number}", "expr": text}
                    for number, text in enumerate(filled)
                ],
            }
        ]
    }


def main(arguments: Sequence[str]) -> int:
    """Writes the file, checks it or prints the rules; returns the exit status."""
    if "--rules" in arguments:
        print(json.dumps(rules(), indent=2))
        return 0
    text = json.dumps(dashboard(), indent=2) + "\n"
    if "--check" not in arguments:
        TARGET.write_text(text, encoding="utf-8")
        return 0
    if TARGET.exists() and TARGET.read_text(encoding="utf-8") == text:
        return 0
    print(f"{TARGET.name} is not what generate.py writes: run it and commit", file=sys.stderr)
    return 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
