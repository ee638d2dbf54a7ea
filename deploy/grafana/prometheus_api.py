"""The part of Prometheus' HTTP API that is needed to draw boards, and to look at rules."""

from __future__ import annotations

import json
import math
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import Any

TIMEOUT_S = 30


class PrometheusError(Exception):
    """Prometheus refused a question, or cannot be reached; the text says which and why."""


@dataclass(frozen=True)
class Span:
    """Moments at equal distances, in seconds since 1970; the end may be one."""

    start_s: float
    end_s: float
    step_s: float

    @property
    def moments_s(self) -> list[float]:
        """Each of them."""
        count = math.floor((self.end_s - self.start_s) / self.step_s) + 1
        return [self.start_s + number * self.step_s for number in range(count)]


@dataclass(frozen=True)
class Series:
    """One line: its labels, and its value at each moment of a span; NaN where there is none."""

    labels: dict[str, str]
    values: tuple[float, ...]

    @property
    def last(self) -> float:
        """The latest value that is a number."""
        return next(value for value in reversed(self.values) if math.isfinite(value))


class Prometheus:
    """A running Prometheus."""

    def __init__(self, url: str) -> None:
        """`url` is such as http://localhost:9090."""
        self.url = url.rstrip("/")

    def get(self, path: str, **parameters: str | float) -> Any:
        """The data of an answer of /api/v1/`path`.

        Raises:
            PrometheusError: it was refused, or there is none.
        """
        address = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(address, timeout=TIMEOUT_S) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            with error:
                text = error.read().decode(errors="replace")
            raise PrometheusError(f"{error.code} to {parameters}: {text}") from error
        except (OSError, ValueError) as error:
            raise PrometheusError(f"{address}: {error}") from error

    def over(self, expression: str, span: Span) -> list[Series]:
        """The values of an expression; lines without any number are left out.

        Raises:
            PrometheusError: the expression is wrong, or there is no answer.
        """
        times = {"start": span.start_s, "end": span.end_s, "step": span.step_s}
        found = self.get("query_range", query=expression, **times)
        lines = [Series(one["metric"], _on(span, one["values"])) for one in found["result"]]
        return [line for line in lines if any(map(math.isfinite, line.values))]


def _on(span: Span, answered: list[tuple[float, str]]) -> tuple[float, ...]:
    """What was answered, in its places: moments without a value are not in an answer."""
    values = [math.nan] * len(span.moments_s)
    for time_s, text in answered:
        value = float(text)
        values[round((time_s - span.start_s) / span.step_s)] = (
            value if math.isfinite(value) else math.nan
        )
    return tuple(values)
