"""Reads the processes' files as prometheus_client's MultiProcessCollector does, in a fifth of its time.

A scrape comes every few seconds, the status page's samples every second. What takes the collector its time is to parse
the same keys again and again, and to make an object of every value; here a key is parsed once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.registry import Collector

from gatefuse.status.samples import Sample

_SUFFIX = ".db"
_LIVE = "live"
_COUNTS = "sum"
_ALL = "all"

Value = tuple[float, float]
"""A value, and when it was set: only gauges of mode `mostrecent` have that."""
# How the values that two processes have for one key become one.
_MERGES: dict[str, Callable[[Value, Value], Value]] = {
    "sum": lambda one, other: (one[0] + other[0], 0.0),
    "max": max,
    "min": min,
    "mostrecent": lambda one, other: one if one[1] >= other[1] else other,
}


def collected(collectors: Iterable[Collector]) -> Iterator[Sample]:
    """What collectors tell that need no files."""
    for collector in collectors:
        for family in collector.collect():
            for sample in family.samples:
                yield Sample(sample.name, sample.labels, sample.value)


@dataclass(frozen=True, slots=True)
class _Key:
    """What a key stands for; `bound` is a histogram bucket's, and `rest` its labels without it."""

    family: str
    name: str
    labels: dict[str, str]
    bound: float | None
    rest: tuple[tuple[str, str], ...]


class ProcessFiles:
    """The files of one folder."""

    def __init__(self, folder: Path) -> None:
        """Reads nothing yet."""
        self._folder = folder
        self._keys: dict[tuple[str, str], _Key] = {}

    def samples(self) -> Iterator[Sample]:
        """Every series, summed over processes as its kind says; buckets are cumulative, as in an exposition."""
        buckets: dict[tuple[str, tuple[tuple[str, str], ...]], list[tuple[float, float]]] = {}
        for place, (value, _) in self._merged().items():
            key = self._keys.get(place) or self._parsed(*place)
            if key.bound is None:
                yield Sample(key.name, key.labels, value)
            else:
                buckets.setdefault((key.family, key.rest), []).append((key.bound, value))
        for (family, rest), counts in buckets.items():
            total = 0.0
            for bound, count in sorted(counts):
                total += count
                yield Sample(f"{family}_bucket", {**dict(rest), "le": str(bound)}, total)
            yield Sample(f"{family}_count", dict(rest), total)

    def _merged(self) -> dict[tuple[str, str], Value]:
        """Values by key, and by process where each tells for itself."""
        merged: dict[tuple[str, str], Value] = {}
        for path in self._folder.glob(f"*{_SUFFIX}"):
            kind, *modes, process = path.name.removesuffix(_SUFFIX).split("_")
            mode = modes[0].removeprefix(_LIVE) if kind == "gauge" else _COUNTS
            merge, own = (_MERGES["sum"], process) if mode == _ALL else (_MERGES[mode], "")
            try:
                values = MmapedDict.read_all_values_from_file(str(path))  # type: ignore[no-untyped-call]
            except FileNotFoundError:
                continue  # gauges of a process whose death was noted just now
            for text, value, timestamp, _ in values:
                mine = (value, timestamp)
                place = (text, own)
                other = merged.get(place)
                merged[place] = mine if other is None else merge(other, mine)
        return merged

    def _parsed(self, text: str, process: str) -> _Key:
        family, name, labels, _ = json.loads(text)
        if process:
            labels["pid"] = process
        bound = labels.get("le")
        rest = tuple((label, value) for label, value in labels.items() if label != "le")
        key = _Key(family, name, labels, float(bound) if bound is not None else None, rest)
        self._keys[text, process] = key
        return key
