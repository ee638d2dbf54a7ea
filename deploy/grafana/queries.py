"""A board's queries with Grafana's variables filled in, as Prometheus takes them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from deploy.grafana.boards.as_json import ANNOTATIONS, RANGE
from deploy.grafana.boards.panels import Board

NOTHING: Mapping[str, str] = MappingProxyType({})


def filled(expression: str, board: Board, window: str, chosen: Mapping[str, str] = NOTHING) -> str:
    """The expression for every value of the board's choices, its typed numbers at their defaults.

    Args:
        expression: PromQL with `$variable`s of the board.
        board: whose variables they are.
        window: what `$__rate_interval` stands for, such as `1m`.
        chosen: values of variables, in place of all or the default.

    Raises:
        KeyError: the expression names a variable that the board has not.
    """
    values = {v.name: v.everything if v.query else v.default for v in board.variables}
    own = {"__rate_interval": window, "__range": RANGE}
    return _substituted(expression, {**own, **values, **chosen})


def all_queries(board: Board, window: str) -> dict[str, str]:
    """Every query of the page, by panel's title and place within it; the annotations by their names."""
    queries = {
        f"{row.title} / {panel.title} / {number}": filled(query.expression, board, window)
        for row in board.rows
        for panel in row.panels
        for number, query in enumerate(panel.queries)
    }
    for name, _, expression in ANNOTATIONS:
        queries[f"annotation / {name}"] = filled(expression, board, window)
    return queries


def _substituted(text: str, values: Mapping[str, str]) -> str:
    return re.sub(r"\$(\w+)", lambda found: values[found[1]], text)
