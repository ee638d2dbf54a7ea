"""The boards show series that the service has, say what they mean, and are what Grafana reads."""

from __future__ import annotations

import copy
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deploy.grafana.boards import BOARDS
from deploy.grafana.boards.as_json import ANNOTATIONS, board_json, lines_of
from deploy.grafana.boards.panels import Panel, Query, Row
from deploy.grafana.queries import all_queries, filled
from tests.deploy.grafana_schema import SchemaError, check_board
from tests.deploy.series import DCGM, check_series, grouped_by, selectors

ROOT = Path(__file__).parents[2]
DASHBOARDS = ROOT / "deploy/grafana/dashboards"
FILES: dict[str, dict[str, Any]] = {
    path.stem: json.loads(path.read_text(encoding="utf-8")) for path in DASHBOARDS.glob("*.json")
}
PANELS = [panel for board in BOARDS.values() for panel in board.panels]
EXPRESSIONS = sorted(
    {query.expression for panel in PANELS for query in panel.queries} - {"vector($bandwidth)"}
    | {expression for _, _, expression in ANNOTATIONS}
)
VARIABLE_QUERIES = sorted(
    {v.query for board in BOARDS.values() for v in board.variables if v.query}
)


def test_generating_them_again_changes_nothing() -> None:
    command = [sys.executable, "-m", "deploy.grafana.generate", "--check"]
    assert subprocess.run(command, cwd=ROOT, check=False, timeout=60).returncode == 0
    assert set(FILES) == set(BOARDS)


@pytest.mark.parametrize("expression", EXPRESSIONS + VARIABLE_QUERIES)
def test_every_series_and_label_exists(
    expression: str, labels_of_series: dict[str, set[str]]
) -> None:
    check_series(expression, {**labels_of_series, **DCGM})


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.title)
def test_every_panel_says_its_unit_and_how_to_read_it(panel: Panel) -> None:
    assert panel.unit
    assert len(panel.description) > 20
    assert panel.description.endswith(".")


@pytest.mark.parametrize("name", sorted(FILES))
def test_no_panel_is_tied_to_one_data_source_or_one_window(name: str) -> None:
    board = FILES[name]
    uids = re.findall(r'"uid": "([^"]*)"', json.dumps(board))
    assert set(uids) == {"${datasource}", board["uid"]}
    assert not re.search(r"\[\d|offset \d", json.dumps(board))


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_choice_is_used_and_what_is_used_can_be_chosen(name: str) -> None:
    queries = " ".join(query.expression for p in BOARDS[name].panels for query in p.queries)
    used = set(re.findall(r"\$(\w+)", queries)) - {"__rate_interval"}
    assert used == {variable.name for variable in BOARDS[name].variables}


@pytest.mark.parametrize("name", sorted(FILES))
def test_panels_do_not_overlap(name: str) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in FILES[name]["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        assert max(x for x, _ in cells) < 24
        taken |= cells


@pytest.mark.parametrize(
    ("count", "lengths"), [(1, [1]), (4, [4]), (5, [2, 3]), (8, [4, 4]), (9, [3, 3, 3])]
)
def test_lines_are_as_equal_as_can_be(count: int, lengths: list[int]) -> None:
    panels = tuple(Panel(str(number), "short", "", ()) for number in range(count))
    lines = lines_of(Row("", panels))
    assert [len(line) for line in lines] == lengths
    assert tuple(panel for line in lines for panel in line) == panels


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_series_is_of_the_chosen_nodes(expression: str) -> None:
    for name, matched in selectors(expression):
        assert "instance" in matched or name in DCGM, name


@pytest.mark.parametrize(
    "query", [query for panel in PANELS for query in panel.queries], ids=lambda q: q.expression
)
def test_a_device_or_process_is_named_with_its_node(query: Query) -> None:
    """Each node has a cpu:0 and a worker-0: their sums and their maxima mean nothing."""
    if grouped_by(query.expression) & {"device", "process"}:
        assert "instance" in grouped_by(query.expression)
        assert "{{instance}}" in query.legend


def test_one_board_lays_the_backends_side_by_side() -> None:
    for panel in BOARDS["fused-and-eager"].panels:
        assert all("{{backend}}" in query.legend for query in panel.queries)


def test_queries_are_filled_for_prometheus() -> None:
    board = BOARDS["fused-and-eager"]
    text = filled('sum(rate(x{model=~"$model"}[$__rate_interval])) / $bandwidth', board, "4s")
    assert text == 'sum(rate(x{model=~".*"}[4s])) / 4.56e12'
    with pytest.raises(KeyError):
        filled("x{y=~'$absent'}", board, "4s")
    for one in BOARDS.values():
        queries = all_queries(one, "4s")
        assert len(queries) == sum(len(p.queries) for p in one.panels) + len(ANNOTATIONS)
        assert not any("$" in query for query in queries.values())


@pytest.mark.parametrize("name", sorted(FILES))
def test_grafana_reads_it(name: str) -> None:
    check_board(FILES[name])


def _first(board: dict[str, Any], kind: str) -> dict[str, Any]:
    panel: dict[str, Any] = next(panel for panel in board["panels"] if panel["type"] == kind)
    return panel


@pytest.mark.parametrize(
    ("breakage", "place"),
    [
        (lambda b: _first(b, "stat").update(type="number"), "type"),
        (lambda b: _first(b, "stat").update(colour="red"), "colour"),
        (lambda b: _first(b, "stat")["options"].update(graphMode="lines"), "options.graphMode"),
        (lambda b: _first(b, "stat")["gridPos"].update(w="6"), "gridPos.w"),
        (lambda b: _first(b, "heatmap")["options"].update(stacking={}), "options.stacking"),
        (lambda b: _first(b, "timeseries")["targets"][0].update(expr=["up"]), "targets[0].expr"),
        (
            lambda b: _first(b, "timeseries")["fieldConfig"]["defaults"].update(unit="lightyears"),
            "unit",
        ),
        (
            lambda b: _first(b, "timeseries")["fieldConfig"]["defaults"]["custom"].update(
                stacking={"mode": "high"}
            ),
            "custom.stacking.mode",
        ),
        (lambda b: b.update(refresh=10), "board.refresh"),
        (lambda b: b["templating"]["list"][0].update(type="prometheus"), "templating.list[0]"),
    ],
)
def test_what_grafana_would_not_take_is_refused(
    breakage: Callable[[dict[str, Any]], None], place: str
) -> None:
    board = copy.deepcopy(board_json(BOARDS["service"]))
    check_board(board)
    breakage(board)
    with pytest.raises(SchemaError, match=re.escape(place)):
        check_board(board)
