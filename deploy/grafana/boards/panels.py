"""What a board is made of: rows of panels, each with its queries. Nothing here knows Grafana's own format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["timeseries", "heatmap", "stat", "table"]


@dataclass(frozen=True)
class Query:
    """One PromQL expression and the name of the lines it draws."""

    expression: str
    legend: str


@dataclass(frozen=True)
class Panel:
    """One picture: a question as its title, the answer's unit, how to read it, and its queries.

    Attributes:
        unit: one of Grafana's unit ids.
        stacked: the lines add up to something.
        minimum: where the axis begins; None leaves it to the values.
        maximum: where it ends.
        logarithmic: the lines differ by more than an axis from zero can show.
        limits: values at which a stat turns from green to red; with two, from green over orange to red. Descending
            limits are read the other way: below the last is red.
    """

    title: str
    unit: str
    description: str
    queries: tuple[Query, ...]
    kind: Kind = "timeseries"
    stacked: bool = False
    minimum: float | None = 0
    maximum: float | None = None
    logarithmic: bool = False
    limits: tuple[float, ...] = ()


@dataclass(frozen=True)
class Row:
    """Panels under one heading, side by side, four to a line at most."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Variable:
    """A choice at the top of a board: the values of a label, or a number that the reader may type.

    Attributes:
        query: where the values come from; empty for a number.
        everything: a regular expression that stands for all values.
        default: the number.
    """

    name: str
    label: str
    description: str
    query: str = ""
    everything: str = ".*"
    default: str = ""


@dataclass(frozen=True)
class Board:
    """One page.

    Attributes:
        uid: in the page's address; never changes.
    """

    uid: str
    title: str
    description: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]

    @property
    def panels(self) -> tuple[Panel, ...]:
        """Every panel, in the order of the page."""
        return tuple(panel for row in self.rows for panel in row.panels)
