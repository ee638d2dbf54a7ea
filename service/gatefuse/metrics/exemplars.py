"""Exemplars: for each bucket of the request durations, a recent trace whose request fell into it.

prometheus_client has none where several processes count. Each process keeps its latest for each bucket in a small file
beside its metrics; the endpoint adds the newest of all files to the samples it collects. They are exposed in the
OpenMetrics format only, as the older text format has no place for them.
"""

import json
import logging
import os
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from prometheus_client import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar, Sample
from prometheus_client.utils import floatToGoString

from gatefuse.metrics import families

log = logging.getLogger(__name__)

FAMILY = "gatefuse_request_duration_seconds"
_PREFIX, _SUFFIX = "exemplars-", ".json"
_EDGES = tuple(
    floatToGoString(bound)  # type: ignore[no-untyped-call]
    for bound in (*families.DURATION_BUCKETS_S, float("inf"))
)

_Key = tuple[str, str, str]
"""Method, outcome, and the bucket's `le`."""


class _Noted(NamedTuple):
    duration_s: float
    trace_id: str
    at_s: float  # since 1970


class ExemplarFile:
    """One process's exemplars."""

    def __init__(self, folder: Path) -> None:
        """`folder` is where the metrics' files are."""
        self._path = folder / f"{_PREFIX}{os.getpid()}{_SUFFIX}"
        self._noted: dict[_Key, _Noted] = {}
        self._changed = False

    def note(self, method: str, outcome: str, duration_s: float, trace_id: str) -> None:
        """A request whose spans are kept took so long; labels as in `record.RpcMetrics.finished`."""
        edge = _EDGES[bisect_left(families.DURATION_BUCKETS_S, duration_s)]
        self._noted[method, outcome, edge] = _Noted(duration_s, trace_id, time.time())
        self._changed = True

    def flush(self) -> None:
        """Writes the file, if it has changed."""
        if not self._changed:
            return
        self._changed = False
        partial = self._path.with_suffix(".partial")
        try:
            partial.write_text(json.dumps([[*key, *noted] for key, noted in self._noted.items()]))
            os.replace(partial, self._path)
        except OSError as error:
            log.error("exemplars could not be written: %s", error.strerror)


class _Collects(Protocol):
    def collect(self) -> Iterable[Metric]: ...


class WithExemplars(Collector):
    """What another collector collects, with the exemplars of all processes."""

    def __init__(self, collector: _Collects, folder: Path) -> None:
        """`folder` is where the metrics' files are."""
        self._collector = collector
        self._folder = folder

    def collect(self) -> Iterator[Metric]:
        """See Collector."""
        for metric in self._collector.collect():
            if metric.name == FAMILY:
                newest = _read(self._folder)
                metric.samples = [_with_exemplar(sample, newest) for sample in metric.samples]
            yield metric


def _read(folder: Path) -> dict[_Key, _Noted]:
    newest: dict[_Key, _Noted] = {}
    for path in folder.glob(f"{_PREFIX}*{_SUFFIX}"):
        for method, outcome, edge, *rest in json.loads(path.read_text()):
            key, noted = (method, outcome, edge), _Noted(*rest)
            if key not in newest or newest[key].at_s < noted.at_s:
                newest[key] = noted
    return newest


def _with_exemplar(sample: Sample, newest: dict[_Key, _Noted]) -> Sample:
    labels = sample.labels
    noted = newest.get((labels.get("method", ""), labels.get("outcome", ""), labels.get("le", "")))
    if noted is None or not sample.name.endswith("_bucket"):
        return sample
    exemplar = Exemplar({"trace_id": noted.trace_id}, noted.duration_s, noted.at_s)
    return sample._replace(exemplar=exemplar)
