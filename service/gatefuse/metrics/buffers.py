"""Counts on the hot path for the price of an addition, and hands them to prometheus_client a few times a second.

An increment of a multi-process value costs microseconds: it takes a lock and writes to a mapped file. A request at
batch size 1 makes two dozen of them, a tenth of what gRPC itself costs. Here they are plain additions; `flush_all`
writes what has gathered. What a killed process had not flushed, a tenth of a second's worth, is lost.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cache

from prometheus_client import Counter, Gauge, Histogram

_flushers: list[Callable[[], None]] = []


class _Switch:
    """Whether anything is counted in this process."""

    on = True


def switch_off() -> None:
    """From now on every lookup gives a buffer that forgets. Comes before the first lookup."""
    _Switch.on = False


def counting() -> bool:
    """False once counting was switched off."""
    return _Switch.on


class CounterBuffer:
    """Gathers increments of one counter child."""

    __slots__ = ("_child", "pending")

    def __init__(self, child: Counter) -> None:
        self._child = child
        self.pending: float = 0
        _flushers.append(self._flush)

    def inc(self, amount: float = 1) -> None:
        """Adds `amount`, which must not be negative."""
        self.pending += amount

    def _flush(self) -> None:
        if self.pending:
            amount, self.pending = self.pending, 0
            self._child.inc(amount)


class HistogramBuffer:
    """Gathers observations of one histogram child whose upper bounds are `bounds`."""

    __slots__ = ("_bounds", "_child", "_counts", "_sum")

    def __init__(self, child: Histogram, bounds: Sequence[float]) -> None:
        self._child = child
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        _flushers.append(self._flush)

    def observe(self, value: float) -> None:
        """Adds one observation."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def _flush(self) -> None:
        if not any(self._counts):
            return
        # prometheus_client has no call for many observations at once: this is what its `observe` does for each.
        self._child._sum.inc(self._sum)
        for position, count in enumerate(self._counts):
            if count:
                self._child._buckets[position].inc(count)
        self._counts = [0] * len(self._counts)
        self._sum = 0.0


class _ForgetfulCounter(CounterBuffer):
    """Takes the place of a buffer where nothing is counted."""

    __slots__ = ()

    def __init__(self) -> None:
        pass

    def inc(self, amount: float = 1) -> None:
        """Nothing."""


class _ForgetfulHistogram(HistogramBuffer):
    """Takes the place of a buffer where nothing is counted."""

    __slots__ = ()

    def __init__(self) -> None:
        pass

    def observe(self, value: float) -> None:
        """Nothing."""


def buffered_counter(family: Counter) -> Callable[..., CounterBuffer]:
    """A lookup of the family's buffers by label values."""

    @cache
    def lookup(*labels: str) -> CounterBuffer:
        return CounterBuffer(family.labels(*labels)) if _Switch.on else _ForgetfulCounter()

    return lookup


def buffered_histogram(
    family: Histogram, bounds: Sequence[float]
) -> Callable[..., HistogramBuffer]:
    """A lookup of the family's buffers by label values; by none where the family has no labels."""

    @cache
    def lookup(*labels: str) -> HistogramBuffer:
        if not _Switch.on:
            return _ForgetfulHistogram()
        return HistogramBuffer(family.labels(*labels) if labels else family, bounds)

    return lookup


def put(family: Gauge, labels: Sequence[str], value: float) -> None:
    """Sets a gauge at once."""
    if _Switch.on:
        family.labels(*labels).set(value)


def watch(family: Gauge, labels: Sequence[str], read: Callable[[], float]) -> None:
    """Has each flush write what `read` returns then."""
    if not _Switch.on:
        return
    child = family.labels(*labels)
    written: float = 0

    def write() -> None:
        nonlocal written
        if (value := read()) != written:
            child.set(value)
            written = value

    _flushers.append(write)


def flush_all() -> None:
    """Writes everything that has gathered, and what is watched."""
    for flush in _flushers:
        flush()
