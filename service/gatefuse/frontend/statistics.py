"""What each model did since the service started, as ModelStatistics tells it: counts and seconds in mapped files.

Several frontends answer for one service, so each keeps its sums in a file of its own, one for each model, and whoever
is asked adds up the files of all. A sum is written where it is kept, without a lock or a system call: an answer that
was sent is counted wherever one asks next. The files outlive a frontend that dies, and so do its counts.
"""

import mmap
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

SUFFIX = ".statistics"
_ITEM_BYTES = 8
# The sums of a file, in its order; after them comes a row of BATCH_FIELDS for each number of rows, from 1.
(
    _LAST,
    _ROWS,
    _BATCHES,
    _OK,
    _OK_S,
    _FAILED,
    _FAILED_S,
    _QUEUE_S,
    _INPUT_S,
    _COMPUTE_S,
    _OUTPUT_S,
) = range(11)
_HEAD_FIELDS = 11
_BATCH_FIELDS = 4


@dataclass(slots=True)
class BatchTimes:
    """Seconds of one batch: its rows copied to the worker's slot, at the worker, and copied out of the slot."""

    input_s: float = 0.0
    compute_s: float = 0.0
    output_s: float = 0.0


class BatchSums(NamedTuple):
    """All batches of one number of rows, with their seconds."""

    rows: int
    batches: int
    input_s: float
    compute_s: float
    output_s: float


@dataclass(frozen=True, slots=True)
class Sums:
    """Everything that one model did; seconds are sums over its answered requests, each with its whole batch's."""

    last_ms: int = 0  # the end of the last answered request, since 1970
    rows: int = 0
    batches: int = 0
    answered: int = 0
    answered_s: float = 0.0
    failed: int = 0
    failed_s: float = 0.0
    queue_s: float = 0.0
    input_s: float = 0.0
    compute_s: float = 0.0
    output_s: float = 0.0
    by_rows: tuple[BatchSums, ...] = field(default=())


class ModelStatistics:
    """The sums of one model in this process."""

    __slots__ = ("_map", "_sums")

    def __init__(self, path: Path | None, max_batch_rows: int) -> None:
        """Keeps them in a file, in which earlier sums of the model may be, or without a path in memory alone."""
        size = (_HEAD_FIELDS + _BATCH_FIELDS * max_batch_rows) * _ITEM_BYTES
        if path is None:
            self._map = mmap.mmap(-1, size)
        else:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                # Batch sizes that never came are holes in the file.
                os.ftruncate(fd, max(size, os.fstat(fd).st_size))
                self._map = mmap.mmap(fd, 0)
            finally:
                os.close(fd)
        self._sums = memoryview(self._map).cast("d")

    def computed(self, rows: int, times: BatchTimes) -> None:
        """A batch of `rows` rows came back and its rows were handed out."""
        sums = self._sums
        sums[_BATCHES] += 1
        first = _HEAD_FIELDS + _BATCH_FIELDS * (rows - 1)
        sums[first] += 1
        sums[first + 1] += times.input_s
        sums[first + 2] += times.compute_s
        sums[first + 3] += times.output_s

    def answered(self, rows: int, duration_s: float, queue_s: float, times: BatchTimes) -> None:
        """A request of `rows` rows was answered; `times` are those of the batch that answered it."""
        sums = self._sums
        sums[_LAST] = time.time() * 1e3
        sums[_ROWS] += rows
        sums[_OK] += 1
        sums[_OK_S] += duration_s
        sums[_QUEUE_S] += queue_s
        sums[_INPUT_S] += times.input_s
        sums[_COMPUTE_S] += times.compute_s
        sums[_OUTPUT_S] += times.output_s

    def failed(self, duration_s: float) -> None:
        """A request that named the model ended without rows, whatever the reason."""
        self._sums[_FAILED] += 1
        self._sums[_FAILED_S] += duration_s

    def array(self) -> NDArray[np.float64]:
        """A copy of the sums."""
        return np.array(self._sums)


class StatisticsBook:
    """The statistics of every model: this process' own, and the service's."""

    def __init__(self, folder: Path | None = None) -> None:
        """`folder` is where every frontend of the service keeps its files; without one this process counts alone."""
        self._folder = folder
        self._own: dict[str, ModelStatistics] = {}

    def open(self, model: str, max_batch_rows: int) -> ModelStatistics:
        """Counts for a model from now on, on top of what it did before."""
        path = self._folder and self._folder / f"{model}.{os.getpid()}{SUFFIX}"
        self._own[model] = ModelStatistics(path, max_batch_rows)
        return self._own[model]

    def failed(self, model: str, duration_s: float) -> None:
        """A request that named `model` ended without rows; nothing is counted for a name that no model has."""
        if model in self._own:
            self._own[model].failed(duration_s)

    def sums(self, model: str) -> Sums:
        """What `model` did on all frontends; all zero for one that no frontend has counted for."""
        return _read(self._arrays(model))

    def _arrays(self, model: str) -> Iterable[NDArray[np.float64]]:
        if self._folder is None:
            return [self._own[model].array()] if model in self._own else []
        # A model's name has no dot in it.
        return [np.fromfile(path, np.float64) for path in self._folder.glob(f"{model}.*{SUFFIX}")]


def _read(arrays: Iterable[NDArray[np.float64]]) -> Sums:
    arrays = list(arrays)
    if not arrays:
        return Sums()
    total = np.zeros(max(array.size for array in arrays))
    for array in arrays:
        total[: array.size] += array
    table = total[_HEAD_FIELDS:].reshape(-1, _BATCH_FIELDS)
    by_rows = tuple(
        BatchSums(int(index) + 1, int(table[index, 0]), *map(float, table[index, 1:]))
        for index in np.flatnonzero(table[:, 0])
    )
    return Sums(
        last_ms=int(max(array[_LAST] for array in arrays)),
        rows=int(total[_ROWS]),
        batches=int(total[_BATCHES]),
        answered=int(total[_OK]),
        answered_s=float(total[_OK_S]),
        failed=int(total[_FAILED]),
        failed_s=float(total[_FAILED_S]),
        queue_s=float(total[_QUEUE_S]),
        input_s=float(total[_INPUT_S]),
        compute_s=float(total[_COMPUTE_S]),
        output_s=float(total[_OUTPUT_S]),
        by_rows=by_rows,
    )
