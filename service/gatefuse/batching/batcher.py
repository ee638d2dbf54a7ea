"""Which rows leave together, and when: pure decisions on bounded queues, no clock and no event loop of their own.

Batches bind late. Rows wait in one queue per (model, layer, width) and are sealed into a batch only when a worker can
take it, so that under load a batch keeps growing, and on an idle service the first row leaves at once.
"""

import enum
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from gatefuse.batching.company import Company
from gatefuse.batching.queue_policy import (
    NO_POLICY,
    NO_PRIORITIES,
    Priorities,
    QueuePolicy,
    TimeoutAction,
)
from gatefuse.batching.row_queue import BatchKey, RowQueue, Work
from gatefuse.trace_context import BatchTrace

__all__ = ["BatchKey", "Batcher", "Limits", "Sealed", "Trigger", "Work"]


class Trigger(enum.StrEnum):
    """Why a batch was sealed."""

    FULL = "full"  # no further waiting request fits
    TIMEOUT = "timeout"  # it waited for company as long as it may
    DEADLINE = "deadline"  # its head could not wait so long
    IDLE = "idle"  # a worker was free and nothing asks to wait
    DRAIN = "drain"  # the service is shutting down


@dataclass(frozen=True, slots=True)
class Limits:
    """The batching limits of one model."""

    max_batch_rows: int
    max_queue_rows: int
    max_queue_delay_s: float = 0.0
    priorities: Priorities = NO_PRIORITIES
    policy: QueuePolicy = NO_POLICY
    level_policies: Mapping[int, QueuePolicy] = field(default_factory=dict)

    def policy_of(self, level: int) -> QueuePolicy:
        """The policy of a priority level: its own, or that of all which have none."""
        return self.level_policies.get(level, self.policy)


@dataclass(slots=True)
class Sealed:
    """A batch: works in the order of their rows; `input_s` is how long it took to copy those to the worker's slot."""

    key: BatchKey
    works: tuple[Work, ...]
    rows: int
    trigger: Trigger
    input_s: float = 0.0
    moves: tuple[Any, ...] = ()  # of rows that a device moves to or from clients' memory by itself
    trace: BatchTrace | None = None  # where spans of one of its requests are kept


class Batcher:
    """The queues of all models of one frontend."""

    def __init__(self) -> None:
        """Starts empty; models are added when a worker first names them."""
        self._limits: dict[str, Limits] = {}
        self._waiting: dict[BatchKey, RowQueue] = {}  # queues that hold at least one work
        self._queued_rows: dict[str, int] = {}
        self._company: dict[BatchKey, Company] = {}
        self.draining = False

    def __repr__(self) -> str:
        """The live state, for logs and tests."""
        waiting = {key: queue.rows for key, queue in self._waiting.items()}
        return f"Batcher(rows={waiting}, draining={self.draining})"

    def set_limits(self, limits: Mapping[str, Limits]) -> None:
        """Declares the models and their limits."""
        for model, limit in limits.items():
            self._limits[model] = limit
            self._queued_rows.setdefault(model, 0)

    def forget(self, model: str) -> None:
        """Undeclares a model that has no request left."""
        self._limits.pop(model, None)
        self._queued_rows.pop(model, None)
        for key in [key for key in self._company if key.model == model]:
            del self._company[key]

    @property
    def empty(self) -> bool:
        """True when nothing waits."""
        return not self._waiting

    def limits(self, model: str) -> Limits:
        """The limits of `model`. Raises KeyError for an undeclared one."""
        return self._limits[model]

    def queued_rows(self, model: str) -> int:
        """Rows of `model` that wait to be sealed."""
        return self._queued_rows[model]

    def queued_requests(self, model: str, level: int) -> int:
        """Requests of `model` that wait at a priority level; of one above max_batch_rows each piece counts."""
        return sum(
            queue.level_size(level) for key, queue in self._waiting.items() if key.model == model
        )

    def offer(self, works: Iterable[Work]) -> None:
        """Appends works in arrival order. The caller has asked admission first."""
        for work in works:
            self._queue(work.key).append(work)
            self._queued_rows[work.key.model] += work.rows

    def arrived(self, key: BatchKey, now_s: float) -> None:
        """A request was accepted, whose rows may share batches of `key`."""
        company = self._company.get(key)
        if company is None:
            window_s = self._limits[key.model].max_queue_delay_s
            company = self._company[key] = Company(window_s)
        company.arrived(now_s)

    def left(self, key: BatchKey, now_s: float) -> None:
        """A request that had arrived was answered, or its caller left."""
        self._company[key].left(now_s)

    def requeue(self, works: Sequence[Work]) -> None:
        """Puts works of a lost batch back at the head, in their old order."""
        for work in reversed(works):
            self._queue(work.key).prepend(work)
            self._queued_rows[work.key.model] += work.rows

    def discard(self, work: Work) -> None:
        """Takes a work out, wherever it stands; nothing happens when it is not queued."""
        if work.queued:
            queue = self._waiting[work.key]
            queue.remove(work)
            if not queue.size:
                del self._waiting[work.key]
            self._queued_rows[work.key.model] -= work.rows

    def seal(self, models: Container[str], now_s: float) -> Sealed | None:
        """The next batch for a worker that serves `models`, or None when none should leave now.

        Among a model's ripe queues the one with the best head wins: level first, then arrival. Among models it is
        arrival alone: a level says nothing about other models. Works past their deadline are dropped here: whoever
        waits for them has its own timer.
        """
        best: dict[str, tuple[int, float, BatchKey]] = {}
        for key in tuple(self._waiting):
            if key.model not in models:
                continue
            head = self._live_head(key, now_s)
            if head is None or self._ripe_at_s(key, head, now_s) > now_s:
                continue
            this = (head.level, head.arrived_s, key)
            other = best.get(key.model)
            if other is None or this < other:
                best[key.model] = this
        if not best:
            return None
        _, _, chosen = min(best.values(), key=itemgetter(1, 0))
        return self._take(chosen, now_s)

    def next_ripe_s(self, models: Container[str], now_s: float) -> float | None:
        """When the first waiting queue becomes ripe, for a timer; None when nothing waits."""
        times = [
            self._ripe_at_s(key, queue.head(), now_s)
            for key, queue in self._waiting.items()
            if key.model in models
        ]
        return min(times, default=None)

    def _queue(self, key: BatchKey) -> RowQueue:
        """The queue of `key`, which is about to get a work."""
        queue = self._waiting.get(key)
        if queue is None:
            queue = self._waiting[key] = RowQueue()
        return queue

    def _live_head(self, key: BatchKey, now_s: float) -> Work | None:
        """The first work that may still be sealed."""
        while (queue := self._waiting.get(key)) is not None:
            head = queue.head()
            if head.deadline_s <= now_s:
                self.discard(head)
            elif head.queue_deadline_s > now_s or head.attempts:
                return head
            elif self._delays(head):
                queue.demote(head)
            else:
                self.discard(head)
        return None

    def _delays(self, work: Work) -> bool:
        policy = self._limits[work.key.model].policy_of(work.level)
        return policy.timeout_action is TimeoutAction.DELAY

    def _ripe_at_s(self, key: BatchKey, head: Work, now_s: float) -> float:
        limits = self._limits[key.model]
        queue = self._waiting[key]
        if (
            not limits.max_queue_delay_s
            or self.draining
            or queue.rows >= limits.max_batch_rows
            or queue.size >= self._expected(key, now_s)
        ):
            return head.arrived_s
        return min(head.arrived_s + limits.max_queue_delay_s, head.half_time_s)

    def _expected(self, key: BatchKey, now_s: float) -> int:
        company = self._company.get(key)
        return 0 if company is None else company.expected(now_s)

    def _take(self, key: BatchKey, now_s: float) -> Sealed:
        limits = self._limits[key.model]
        works: list[Work] = []
        rows = 0
        full = False
        while (head := self._live_head(key, now_s)) is not None:
            if rows + head.rows > limits.max_batch_rows:
                full = True
                break
            self.discard(head)
            head.attempts += 1
            works.append(head)
            rows += head.rows
        if full or rows == limits.max_batch_rows:
            trigger = Trigger.FULL
        elif self.draining:
            trigger = Trigger.DRAIN
        elif limits.max_queue_delay_s and now_s >= works[0].arrived_s + limits.max_queue_delay_s:
            trigger = Trigger.TIMEOUT
        elif limits.max_queue_delay_s and now_s >= works[0].half_time_s:
            trigger = Trigger.DEADLINE
        else:
            trigger = Trigger.IDLE
        return Sealed(key, tuple(works), rows, trigger)
