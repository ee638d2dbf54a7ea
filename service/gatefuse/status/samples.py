"""The series of one moment, and what happened between two."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from math import inf
from typing import NamedTuple

Labels = tuple[str, ...]
"""Values of the labels that were asked for, in that order."""


class Sample(NamedTuple):
    """One series: its name as exported, with `_total`, `_bucket`, `_sum` or `_count`, and its value."""

    name: str
    labels: Mapping[str, str]
    value: float


class Samples:
    """Every series of one moment."""

    def __init__(self, samples: Iterable[Sample] = ()) -> None:
        """Sorts them by name."""
        self._by_name: dict[str, list[tuple[Mapping[str, str], float]]] = {}
        # The same sums are asked for when these are the newest samples, and when they begin a window.
        self._sums: dict[tuple[str, Labels, Labels], Mapping[Labels, float]] = {}
        for name, labels, value in samples:
            self._by_name.setdefault(name, []).append((labels, value))

    def by(self, name: str, *keys: str, **where: str) -> Mapping[Labels, float]:
        """Sums of the series that have the labels `where`, by the values of the labels `keys`.

        A series without one of the keys counts under the empty text.
        """
        question = (name, keys, tuple(chain.from_iterable(where.items())))
        sums = self._sums.get(question)
        if sums is None:
            sums = self._sums[question] = self._add_up(name, keys, where)
        return sums

    def _add_up(self, name: str, keys: Labels, where: Mapping[str, str]) -> Mapping[Labels, float]:
        sums: dict[Labels, float] = {}
        for labels, value in self._by_name.get(name, ()):
            if where and any(labels.get(label) != wanted for label, wanted in where.items()):
                continue
            key = tuple([labels.get(each, "") for each in keys])
            sums[key] = sums.get(key, 0.0) + value
        return sums

    def total(self, name: str, **where: str) -> float:
        """The sum of the series that have those labels; 0 where there is none."""
        return sum(self.by(name, **where).values())

    def labels(self, name: str) -> list[Mapping[str, str]]:
        """The labels of every series of that name whose value is not 0."""
        return [labels for labels, value in self._by_name.get(name, ()) if value]

    def past_and_present(self, name: str) -> list[Mapping[str, str]]:
        """The same with those whose value is 0 before them: what described a load that is gone is set to that."""
        found = self._by_name.get(name, ())
        return [labels for labels, value in found if not value] + self.labels(name)


class Change:
    """What counters gained between two moments that are `seconds` apart."""

    def __init__(self, before: Samples, after: Samples, seconds: float) -> None:
        """`seconds` must be above 0."""
        self.seconds = seconds
        self._before = before
        self._after = after

    def by(self, name: str, *keys: str, **where: str) -> dict[Labels, float]:
        """As `Samples.by`. A counter that fell began anew: all of it is gain."""
        before = self._before.by(name, *keys, **where)
        after = self._after.by(name, *keys, **where)
        gains: dict[Labels, float] = {}
        for key, value in after.items():
            earlier = before.get(key, 0.0)
            gains[key] = value - earlier if value >= earlier else value
        return gains

    def total(self, name: str, **where: str) -> float:
        """As `Samples.total`."""
        return sum(self.by(name, **where).values())

    def rate(self, name: str, **where: str) -> float:
        """The same by second."""
        return self.total(name, **where) / self.seconds

    def buckets(self, name: str, *keys: str, **where: str) -> dict[Labels, dict[float, float]]:
        """A histogram's gains by the values of `keys`: how many observations were at or below each bound."""
        found: dict[Labels, dict[float, float]] = {}
        for (*labels, bound), gain in self.by(f"{name}_bucket", *keys, "le", **where).items():
            found.setdefault(tuple(labels), {})[float(bound)] = gain
        return found


def quantile(share: float, buckets: Mapping[float, float]) -> float | None:
    """The value that a share (0 to 1) of the observations does not exceed; None without observations.

    As Prometheus' `histogram_quantile`: evenly spread within a bucket, the first of which begins at 0; beyond the last
    finite bound, that bound.

    Args:
        share: 0.5 for the median.
        buckets: observations at or below each bound; the bound of the last is infinity.
    """
    total = buckets.get(inf, 0.0)
    if not total:
        return None
    rank = share * total
    lower, below = 0.0, 0.0
    for bound, count in sorted(buckets.items()):
        if count >= rank and count > below:
            if bound == inf:
                break
            return lower + (bound - lower) * (rank - below) / (count - below)
        if bound != inf:
            lower, below = bound, count
    return lower
