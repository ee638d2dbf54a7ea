"""The dashboard shows metrics that the service has, and says what they mean."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
GENERATOR = ROOT / "deploy/grafana/generate.py"
DASHBOARD: dict[str, Any] = json.loads(
    (ROOT / "deploy/grafana/dashboards/service.json").read_text(encoding="utf-8")
)
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]
VARIABLE_QUERIES = [
    variable["query"] for variable in DASHBOARD["templating"]["list"] if variable["type"] == "query"
]


def test_generating_it_again_changes_nothing() -> None:
    result = subprocess.run([sys.executable, GENERATOR, "--check"], check=False, timeout=60)
    assert result.returncode == 0


@pytest.mark.parametrize("expression", EXPRESSIONS + VARIABLE_QUERIES)
def test_every_metric_exists(expression: str, labels_of_series: dict[str, set[str]]) -> None:
    names = re.findall(r"\bgatefuse_\w+", expression)
    assert names
    assert set(names) <= set(labels_of_series)


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_label_is_one_that_its_metric_has(
    expression: str, labels_of_series: dict[str, set[str]]
) -> None:
    summed = re.findall(r"by \(([^)]*)\)", expression)
    assert summed
    for name, matchers in re.findall(r"\b(gatefuse_\w+)(?:\{([^}]*)\})?", expression):
        matched = re.findall(r"(\w+)=", matchers)
        by = [label for group in summed for label in re.findall(r"\w+", group)]
        assert {*matched, *by} <= labels_of_series[name]


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_every_panel_says_its_unit_and_how_to_read_it(panel: dict[str, Any]) -> None:
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert len(panel["description"]) > 20


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_no_panel_is_tied_to_one_data_source_or_one_window(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        assert target["datasource"]["uid"] == "${datasource}"
        assert not re.search(r"\[\d", target["expr"])


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        assert max(x for x, _ in cells) < 24
        taken |= cells


def test_it_lays_the_backends_side_by_side() -> None:
    by_backend = [panel["title"] for panel in PANELS if "backend" in panel["targets"][0]["expr"]]
    assert by_backend == [
        "Latency by backend, p50",
        "Device time per batch",
        "Kernel launches per batch",
        "Bytes moved per row",
    ]
