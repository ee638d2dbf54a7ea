"""Where a picture's numbers come from: a Prometheus, asked as Grafana asks it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from deploy.grafana.boards.as_json import ANNOTATIONS
from deploy.grafana.boards.panels import Board, Panel
from deploy.grafana.prometheus_api import Prometheus, Series, Span
from deploy.grafana.queries import filled

POINTS = 120
# Grafana's own rule: four scrapes at least, and one step and one scrape.
SCRAPES_PER_WINDOW = 4
SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}

# For each query of a panel its legend and its lines.
Drawn: TypeAlias = Sequence[tuple[str, list[Series]]]
# A time in seconds since 1970, and a colour.
Mark: TypeAlias = tuple[float, str]


@dataclass(frozen=True)
class Source:
    """A Prometheus, and the time of which it is asked, in seconds since 1970."""

    prometheus: Prometheus
    start_s: float
    end_s: float
    span: Span = field(init=False)

    def __post_init__(self) -> None:
        """Chooses the moments: as many as a panel has room for, none closer than a second."""
        step_s = max(1.0, (self.end_s - self.start_s) / POINTS)
        object.__setattr__(self, "span", Span(self.start_s, self.end_s, step_s))

    def answers(self, board: Board, panel: Panel, chosen: Mapping[str, str]) -> Drawn:
        """What the panel's queries find; `chosen` are values of the board's variables."""
        window = self._window()
        return [
            (
                query.legend,
                self.prometheus.over(filled(query.expression, board, window, chosen), self.span),
            )
            for query in panel.queries
        ]

    def marks(self, board: Board) -> list[Mark]:
        """When each thing began that the board's annotations tell of."""
        window = self._window()
        chosen = {"__range": f"{math.ceil(self.end_s - self.start_s)}s"}
        return [
            (moment_s, colour)
            for _, colour, expression in ANNOTATIONS
            for series in self.prometheus.over(filled(expression, board, window, chosen), self.span)
            for moment_s in _begins(self.span, series)
        ]

    def _window(self) -> str:
        targets = self.prometheus.get("targets", state="active")["activeTargets"]
        intervals = [
            seconds(target["scrapeInterval"])
            for target in targets
            if target["labels"]["job"] == "gatefuse"
        ]
        scrape_s = max(intervals, default=1.0)
        window_s = max(self.span.step_s + scrape_s, SCRAPES_PER_WINDOW * scrape_s)
        return f"{math.ceil(window_s)}s"


def seconds(duration: str) -> float:
    """A duration as Prometheus writes it, such as `1m30s`."""
    return sum(float(n) * SECONDS[unit] for n, unit in re.findall(r"([\d.]+)(ms|[smh])", duration))


def _begins(span: Span, series: Series) -> list[float]:
    before = (math.nan, *series.values)
    return [
        moment_s
        for moment_s, last, value in zip(span.moments_s, before, series.values, strict=False)
        if math.isnan(last) and math.isfinite(value)
    ]
