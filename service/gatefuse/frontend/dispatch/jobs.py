"""The requests that are here: each from its admission until whoever waits for it has an answer."""

import asyncio
import logging
from collections.abc import Callable

from gatefuse.batching.admission import admit
from gatefuse.batching.batcher import Batcher
from gatefuse.batching.queue_policy import QueuePolicy, TimeoutAction
from gatefuse.errors import DeadlineExceeded, NoReplica, QueueTimeout
from gatefuse.frontend.dispatch.loads import Loads
from gatefuse.frontend.requests.codec import InferRequest, Outputs
from gatefuse.frontend.requests.job import Job

log = logging.getLogger(__name__)


class Jobs:
    """Takes requests in, keeps their deadlines and timeouts, and counts how they end."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
        batcher: Batcher,
        loads: Loads,
    ) -> None:
        """Their rows wait in `batcher`; what they do is counted by `loads`."""
        self._loop = loop
        self._clock = clock
        self._batcher = batcher
        self._loads = loads
        self._jobs: set[Job] = set()
        self._idle: asyncio.Future[None] | None = None  # done when the last job is

    def __len__(self) -> int:
        """How many there are."""
        return len(self._jobs)

    def of(self, key: str) -> list[Job]:
        """Those that have the load with that key."""
        return [job for job in self._jobs if job.key.model == key]

    async def all_answered(self, timeout_s: float) -> None:
        """Waits until there are none, but not longer than `timeout_s`."""
        if not self._jobs:
            return
        self._idle = self._loop.create_future()
        try:
            await asyncio.wait_for(self._idle, timeout_s)
        except TimeoutError:
            log.warning("drain timed out with %d requests unanswered", len(self._jobs))

    def accept(self, request: InferRequest, deadline_s: float, *, ready: bool) -> Job:
        """Queues a request; `ready` says whether a worker has its model now.

        Raises:
            ServiceError: admission refused it.
        """
        now_s = self._clock()
        key = request.model.key
        if key not in self._loads.by_key:
            raise NoReplica("the model was unloaded")
        limits = self._batcher.limits(key)
        level = limits.priorities.level(request.priority)
        policy = limits.policy_of(level)
        queued_requests = 0
        if policy.max_queue_size:
            queued_requests = self._batcher.queued_requests(key, level)
        admit(
            rows=request.rows,
            limits=limits,
            queued_rows=self._batcher.queued_rows(key),
            remaining_s=deadline_s - now_s,
            ready=ready,
            draining=self._batcher.draining,
            level=level,
            queued_requests=queued_requests,
        )
        job = Job(request, limits, self._loop.create_future(), now_s, deadline_s)
        self._set_timer(job, policy, now_s)
        self._jobs.add(job)
        self._batcher.arrived(job.key, now_s)
        self._batcher.offer(job.works)
        self._loads.by_key[key].metrics.accepted(request.rows, request.payload_bytes)
        return job

    def forget(self, job: Job) -> None:
        """Takes out whatever is left of a job: rows that still wait, its timer, its place in the drain's count."""
        if not job.answered:
            self._loads.by_key[job.key.model].metrics.dropped(job.request.rows)
        for work in job.works:
            self._batcher.discard(work)
        # A job and its works hold each other: kept so, its rows would wait for the collector, which comes rarely.
        job.works.clear()
        if job.timer is not None:
            job.timer.cancel()
        self._batcher.left(job.key, self._clock())
        self._jobs.discard(job)
        if self._idle is not None and not self._jobs and not self._idle.done():
            self._idle.set_result(None)

    def note_answer(self, job: Job, outputs: Outputs) -> None:
        """It was answered: counts it."""
        job.answered = True
        duration_s = self._clock() - job.accepted_s
        load, rows = self._loads.by_key[job.key.model], job.request.rows
        load.metrics.answered(rows, duration_s, sum(map(len, outputs)))
        load.statistics.answered(rows, duration_s, job.cost.queue_s, job.times)

    def _set_timer(self, job: Job, policy: QueuePolicy, now_s: float) -> None:
        rejects = policy.timeout_action is TimeoutAction.REJECT
        if rejects and job.queue_deadline_s < job.deadline_s:
            wait_s = job.queue_deadline_s - now_s
            job.timer = self._loop.call_later(wait_s, self._queue_time_over, job)
        else:
            job.timer = self._loop.call_later(job.deadline_s - now_s, _expire, job)

    def _queue_time_over(self, job: Job) -> None:
        if job.untouched:
            job.fail(QueueTimeout())
        else:
            job.timer = self._loop.call_later(job.deadline_s - self._clock(), _expire, job)


def _expire(job: Job) -> None:
    job.fail(DeadlineExceeded())
