"""What waits with one key: works by priority level, first come first served within each."""

import math
from bisect import insort
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

LAST_LEVEL = 2**63
"""Behind every level that can be configured."""


class BatchKey(NamedTuple):
    """Rows with the same key may share a batch."""

    model: str
    layer: int
    columns: int


@dataclass(slots=True, eq=False)
class Work:
    """Rows of one request that travel in one batch: a whole request, or a piece of one above max_batch_rows.

    `job` is whoever waits for the answer and means nothing here; `attempts` counts batches it was sealed into. Past
    `queue_deadline_s` it has waited too long to be sealed for the first time.
    """

    key: BatchKey
    rows: int
    arrived_s: float
    deadline_s: float
    job: Any
    offset_rows: int = 0
    attempts: int = 0
    queued: bool = False
    level: int = 0
    queue_deadline_s: float = math.inf

    @property
    def half_time_s(self) -> float:
        """When half the time is over that it may wait: later, its batch might not be computed in time."""
        return (self.arrived_s + min(self.deadline_s, self.queue_deadline_s)) / 2


class RowQueue:
    """Works in order of level and arrival; knows its rows, and lets any work leave in constant time."""

    __slots__ = ("_levels", "_order", "rows", "size")

    def __init__(self) -> None:
        """Empty."""
        self._levels: dict[int, OrderedDict[Work, None]] = {}  # those with at least one work
        self._order: list[int] = []  # their numbers, sorted
        self.rows = 0
        self.size = 0  # in works

    def head(self) -> Work:
        """The work that is next. Raises IndexError when there is none."""
        return next(iter(self._levels[self._order[0]]))

    def level_size(self, level: int) -> int:
        """Works of one level."""
        return len(self._levels.get(level, ()))

    def append(self, work: Work) -> None:
        """Adds a work behind those of its level."""
        level = self._levels.get(work.level)
        if level is None:
            level = self._levels[work.level] = OrderedDict()
            insort(self._order, work.level)
        level[work] = None
        self.rows += work.rows
        self.size += 1
        work.queued = True

    def prepend(self, work: Work) -> None:
        """Adds a work before those of its level."""
        self.append(work)
        self._levels[work.level].move_to_end(work, last=False)

    def remove(self, work: Work) -> None:
        """Takes a work out."""
        level = self._levels[work.level]
        del level[work]
        if not level:
            del self._levels[work.level]
            self._order.remove(work.level)
        self.rows -= work.rows
        self.size -= 1
        work.queued = False

    def demote(self, work: Work) -> None:
        """Puts a work behind all others, where it may wait as long as it takes."""
        self.remove(work)
        work.level, work.queue_deadline_s = LAST_LEVEL, math.inf
        self.append(work)
