"""The asyncio shell around the batcher: owns every request from admission to its answer, whatever workers do.

Everything here runs on the frontend's one event loop, so state changes between two awaits are atomic.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from gatefuse import metrics
from gatefuse.admission import admit
from gatefuse.batcher import Batcher, Limits, Sealed
from gatefuse.codec import Cost, InferRequest, Outputs
from gatefuse.errors import ComputeFailed, DeadlineExceeded, NoReplica
from gatefuse.job import Job
from gatefuse.link import DoneMessage, ServedModel, Status
from gatefuse.rows import batch_layout, read_piece, write_batch

log = logging.getLogger(__name__)

# A batch that takes its worker down is tried on another, so often: then it may be the batch.
MAX_ATTEMPTS = 4
# A thread that sleeps is awake again 50 to 100 us after it is called: an answer that comes sooner than so many looks,
# about 2 us each, is better looked for. Nobody is kept waiting: it is done for a request that is alone.
LOOKS = 100
# gRPC's timer and ours do not tick together: what is cancelled this close to a deadline is late.
DEADLINE_SLACK_S = 0.01


class Slot(Protocol):
    """A slot of a worker's arena, as the dispatcher writes and reads it."""

    input: memoryview
    output: memoryview


class WorkerPort(Protocol):
    """A worker, seen from here: what it serves, and whether it can take a batch."""

    models: Mapping[str, ServedModel]
    device: str

    @property
    def credits(self) -> int:
        """Batches it can take now; 0 while it is not ready."""

    def claim_slot(self) -> Slot:
        """A free slot, which the next `send` uses."""

    def look(self) -> None:
        """Handles an answer if one is there; does not wait."""

    def send(self, sealed: Sealed, slot: Slot, last_deadline_s: float) -> None:
        """Sends the batch whose rows were written into the slot."""


class Dispatcher:
    """Takes requests, seals batches for workers that are free, hands out the rows that come back."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`clock` gives seconds of the machine's monotonic clock, which workers share."""
        self._loop = loop
        self._clock = clock
        self._batcher = Batcher()
        self._workers: list[WorkerPort] = []
        self._metrics: dict[str, metrics.ModelMetrics] = {}
        self._pump_scheduled = False
        self._ripe_timer: asyncio.TimerHandle | None = None
        self._jobs: set[Job] = set()
        self._idle: asyncio.Future[None] | None = None  # made by drain, done when the last job is
        self.models: dict[str, ServedModel] = {}

    def __repr__(self) -> str:
        """The live state, for logs and tests."""
        return f"Dispatcher(requests={len(self._jobs)}, {self._batcher!r})"

    @property
    def alone(self) -> bool:
        """True while there is exactly one request."""
        return len(self._jobs) == 1

    @property
    def draining(self) -> bool:
        """True once `drain` was called."""
        return self._batcher.draining

    def is_ready(self, model: str) -> bool:
        """True when some connected worker serves `model`."""
        return any(model in worker.models for worker in self._workers)

    def worker_ready(self, worker: WorkerPort, limits: Mapping[str, Limits]) -> None:
        """A worker connected; `limits` are those of the models it serves."""
        self._batcher.set_limits(limits)
        for name, model in worker.models.items():
            self.models[name] = model
            if name not in self._metrics:
                self._metrics[name] = metrics.ModelMetrics(
                    model, limits[name].max_queue_rows, partial(self._batcher.queued_rows, name)
                )
        self._workers.append(worker)
        self._schedule_pump()

    def worker_lost(self, worker: WorkerPort, batches: list[Sealed]) -> None:
        """A worker is gone: its batches go back to the head of the queue, while their deadlines allow."""
        if worker in self._workers:
            self._workers.remove(worker)
        for sealed in reversed(batches):
            alive = [work for work in sealed.works if not work.job.future.done()]
            again = [work for work in alive if work.attempts < MAX_ATTEMPTS]
            self._batcher.requeue(again)
            for work in alive:
                if work.attempts >= MAX_ATTEMPTS:
                    work.job.fail(NoReplica("the workers that took these rows failed"))
        self._schedule_pump()

    def slot_free(self) -> None:
        """A worker can take another batch."""
        if not self._batcher.empty:
            self._schedule_pump()

    async def infer(self, request: InferRequest, deadline_s: float) -> tuple[Outputs, Cost]:
        """Queues a request and waits for its rows, in the request's datatype.

        Raises:
            ServiceError: admission refused it, its deadline passed, or the device failed.
            asyncio.CancelledError: the caller left; every trace of the request is taken out.
        """
        job = self._accept(request, deadline_s)
        try:
            if self.alone:
                self._pump()  # nobody else is here to share a batch with
                self._look_for_answer(job)
            outputs = await job.future
        except asyncio.CancelledError:
            # gRPC cancels at the client's deadline too: that is no caller who left.
            if self._clock() < deadline_s - DEADLINE_SLACK_S:
                metrics.caller_left("executing" if job.executing else "queued")
            raise
        finally:
            self._forget(job)
        payload_bytes = sum(map(len, outputs))
        self._metrics[request.model.name].answered(self._clock() - job.accepted_s, payload_bytes)
        return outputs, job.cost

    async def drain(self, timeout_s: float) -> None:
        """Takes no more requests; returns when those accepted are answered, or after `timeout_s`."""
        self._batcher.draining = True
        self._schedule_pump()
        if not self._jobs:
            return
        self._idle = self._loop.create_future()
        try:
            await asyncio.wait_for(self._idle, timeout_s)
        except TimeoutError:
            log.warning("drain timed out with %d requests unanswered", len(self._jobs))

    def batch_done(
        self, worker: WorkerPort, sealed: Sealed, slot: Slot, done: DoneMessage, call_s: float
    ) -> None:
        """A worker finished a batch; its answers are in the slot, which is free afterwards."""
        if done.status is not Status.OK:
            self._batch_refused(sealed, done.status, call_s)
            return
        model = self.models[sealed.key.model]
        layout = batch_layout(model.dtype, sealed.rows, sealed.key.columns)
        tensor_bytes = sealed.rows * layout.row_bytes
        moved = (len(model.inputs) * tensor_bytes, len(model.outputs) * tensor_bytes)
        self._metrics[model.name].computed(worker.device, sealed.rows, moved, done, call_s)
        first_row = 0
        for work in sealed.works:
            job: Job = work.job
            if not job.future.done():
                outputs = read_piece(work, first_row, layout, slot.output)
                job.piece_done(work, outputs, sealed.rows, done)
            first_row += work.rows

    def _batch_refused(self, sealed: Sealed, status: Status, call_s: float) -> None:
        expired = status is Status.EXPIRED
        metrics.call_ended_badly("expired" if expired else "failed", call_s)
        for work in sealed.works:
            work.job.fail(DeadlineExceeded() if expired else ComputeFailed())

    def _accept(self, request: InferRequest, deadline_s: float) -> Job:
        now_s = self._clock()
        name = request.model.name
        limits = self._batcher.limits(name)
        admit(
            rows=request.rows,
            limits=limits,
            queued_rows=self._batcher.queued_rows(name),
            remaining_s=deadline_s - now_s,
            ready=self.is_ready(name),
            draining=self.draining,
        )
        job = Job(request, limits, self._loop.create_future(), now_s, deadline_s)
        job.timer = self._loop.call_later(deadline_s - now_s, _expire, job)
        self._jobs.add(job)
        self._batcher.arrived(job.key, now_s)
        self._batcher.offer(job.works)
        self._metrics[name].accepted(request.rows, request.payload_bytes)
        self._schedule_pump()
        return job

    def _look_for_answer(self, job: Job) -> None:
        """Asks the workers for the answer of the only request, for as long as a sleep and a wake-up would take."""
        for _ in range(LOOKS):
            if job.future.done() or not job.executing:
                return
            for worker in tuple(self._workers):
                worker.look()

    def _forget(self, job: Job) -> None:
        """Takes out whatever is left of a job: rows that still wait, its timer, its place in the drain's count."""
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

    def _schedule_pump(self) -> None:
        # Requests that arrive in one turn of the loop are sealed together: the pump runs in the next.
        if not self._pump_scheduled:
            self._pump_scheduled = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pump_scheduled = False
        if self._batcher.empty:
            return
        now_s = self._clock()
        while self._dispatch_one(now_s):
            pass
        self._arm_ripe_timer()

    def _dispatch_one(self, now_s: float) -> bool:
        """Sends one batch to the freest worker that has work; False when none has."""
        free = [worker for worker in self._workers if worker.credits]
        if len(free) > 1:
            free.sort(key=_credits, reverse=True)
        for worker in free:
            sealed = self._batcher.seal(worker.models, now_s)
            if sealed is not None:
                self._send(worker, sealed, now_s)
                return True
        return False

    def _send(self, worker: WorkerPort, sealed: Sealed, now_s: float) -> None:
        model = self.models[sealed.key.model]
        slot = worker.claim_slot()
        layout = batch_layout(model.dtype, sealed.rows, sealed.key.columns)
        write_batch(sealed, layout, slot.input)
        last_deadline_s = max(work.deadline_s for work in sealed.works)
        series = self._metrics[model.name]
        series.sealed(sealed.rows, len(sealed.works), sealed.trigger)
        for work in sealed.works:
            if work.attempts == 1 and work.offset_rows == 0:
                work.job.cost.queue_s = now_s - work.arrived_s
                series.waited(work.job.cost.queue_s)
        worker.send(sealed, slot, last_deadline_s)

    def _arm_ripe_timer(self) -> None:
        """Wakes the pump when rows that wait for company have waited long enough."""
        if self._ripe_timer is not None:
            self._ripe_timer.cancel()
            self._ripe_timer = None
        if self._batcher.empty:
            return
        free = {model for worker in self._workers if worker.credits for model in worker.models}
        now_s = self._clock()
        if free and (ripe_s := self._batcher.next_ripe_s(free, now_s)) is not None:
            delay_s = max(0.0, ripe_s - now_s)
            self._ripe_timer = self._loop.call_later(delay_s, self._schedule_pump)


def _expire(job: Job) -> None:
    job.fail(DeadlineExceeded())


def _credits(worker: WorkerPort) -> int:
    return worker.credits
