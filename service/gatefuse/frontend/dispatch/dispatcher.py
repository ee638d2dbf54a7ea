"""The asyncio shell around the batcher: owns every request from admission to its answer, whatever workers do.

Everything here runs on the frontend's one event loop, so state changes between two awaits are atomic.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from operator import attrgetter

from gatefuse import metrics
from gatefuse.batching.batcher import Batcher, Limits, Sealed
from gatefuse.errors import ComputeFailed, DeadlineExceeded, NoReplica, ServiceError
from gatefuse.frontend.dispatch.jobs import Jobs
from gatefuse.frontend.dispatch.loads import Loads
from gatefuse.frontend.dispatch.rows import batch_layout, read_piece, write_batch
from gatefuse.frontend.requests.codec import Cost, InferRequest, Outputs
from gatefuse.frontend.requests.job import Job, Left
from gatefuse.frontend.shared_memory.lent_memory import Lender
from gatefuse.frontend.statistics import BatchTimes, StatisticsBook
from gatefuse.frontend.telemetry import BatchTraces, Exchange
from gatefuse.frontend.worker_port import Slot, WorkerPort
from gatefuse.link.messages import DoneMessage, Status
from gatefuse.link.served_model import ServedModel

log = logging.getLogger(__name__)

# A batch that takes its worker down is tried on another, so often: then it may be the batch.
MAX_ATTEMPTS = 4
# A thread that sleeps is awake again 50 to 100 us after it is called: an answer that comes sooner than so many looks,
# about 2 us each, is better looked for. Nobody is kept waiting: it is done for a request that is alone.
LOOKS = 100
FINISH_POLL_S = 0.01


class Dispatcher:
    """Takes requests, seals batches for workers that are free, hands out the rows that come back."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float] = time.monotonic,
        statistics: StatisticsBook | None = None,
    ) -> None:
        """`clock` gives seconds of the machine's monotonic clock, which workers share."""
        self._loop = loop
        self._clock = clock
        self.statistics = statistics or StatisticsBook()
        self._batcher = Batcher()
        self._workers: list[WorkerPort] = []
        self._loads = Loads(self.statistics, self._batcher.queued_rows)
        self._pump_scheduled = False
        self._ripe_timer: asyncio.TimerHandle | None = None
        self._jobs = Jobs(loop, clock, self._batcher, self._loads)
        self.batch_traces = BatchTraces()
        self.models: Mapping[str, ServedModel] = self._loads.current

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
        return bool(self.devices(model))

    def devices(self, model: str) -> list[str]:
        """The device of each connected worker that serves `model`."""
        if model not in self.models:
            return []
        key = self.models[model].key
        return [worker.device for worker in self._workers if key in worker.models]

    def limits(self, model: str) -> Limits:
        """The batching limits of a model that some worker has named."""
        return self._batcher.limits(self.models[model].key)

    @property
    def lenders(self) -> tuple[Lender, ...]:
        """What each worker's device can do with clients' memory."""
        return tuple(worker.memory for worker in self._workers)

    def worker_ready(self, worker: WorkerPort, limits: Mapping[str, Limits]) -> None:
        """A worker connected; `limits` are those of the models it serves."""
        self._batcher.set_limits(limits)
        for key, model in worker.models.items():
            self._loads.learn(model, limits[key].max_queue_rows, worker.device_label)
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
            self.batch_traces.failed(worker, sealed, "lost", self._clock())
            for work in alive:
                if work.attempts >= MAX_ATTEMPTS:
                    work.job.fail(NoReplica("the workers that took these rows failed"))
        self._schedule_pump()

    def choose(self, keys: Mapping[str, str]) -> None:
        """From now on requests for a model get the load with this key; those accepted before keep theirs."""
        self._loads.choose(keys)

    async def finish(self, key: str, timeout_s: float) -> None:
        """Waits until no request has that load; those that are left after `timeout_s` are refused."""
        until_s = self._clock() + timeout_s
        while jobs := self._jobs.of(key):
            if self._clock() >= until_s:
                for job in jobs:
                    job.fail(NoReplica("the model was unloaded"))
            await asyncio.sleep(FINISH_POLL_S)
        self._loads.forget(key)
        self._batcher.forget(key)

    def slot_free(self) -> None:
        """A worker can take another batch."""
        if not self._batcher.empty:
            self._schedule_pump()

    async def infer(
        self, request: InferRequest, deadline_s: float, exchange: Exchange | None = None
    ) -> tuple[Outputs, Cost]:
        """Queues a request, part of `exchange`, and waits for its rows, in the request's datatype.

        Raises:
            ServiceError: admission refused it, its deadline passed, or the device failed.
            Left: the call was cancelled; every trace of the request is taken out.
        """
        job = self.submit(request, deadline_s, exchange)
        try:
            outputs = await job.future
            self._jobs.note_answer(job, outputs)
        except asyncio.CancelledError as error:
            raise Left(job.phase) from error
        finally:
            self._jobs.forget(job)
        return outputs, job.cost

    def submit(
        self, request: InferRequest, deadline_s: float, exchange: Exchange | None = None
    ) -> Job:
        """Queues a request. When its job's future is done, `take_answer` is to be called, or `abandon` before that.

        Raises:
            ServiceError: admission refused it.
        """
        key = request.model.key
        ready = any(key in worker.models for worker in self._workers)
        job = self._jobs.accept(request, deadline_s, ready=ready)
        if exchange is not None:
            exchange.job, job.trace = job, exchange.trace
        self._schedule_pump()
        if self.alone:
            self._pump()  # nobody else is here to share a batch with
            self._look_for_answer(job)
        return job

    def take_answer(self, job: Job) -> Outputs:
        """The rows of a job whose future is done, in the request's datatype.

        Raises:
            ServiceError: its deadline passed, or the device failed.
        """
        try:
            outputs = job.future.result()
            self._jobs.note_answer(job, outputs)
        finally:
            self._jobs.forget(job)
        return outputs

    def abandon(self, job: Job) -> str:
        """The caller left: every trace of the request is taken out; returns the phase that it was in."""
        phase = job.phase
        if not job.future.cancel() and not job.future.cancelled():
            job.future.exception()  # seen: asyncio would complain of it
        self._jobs.forget(job)
        return phase

    async def drain(self, timeout_s: float) -> None:
        """Takes no more requests; returns when those accepted are answered, or after `timeout_s`."""
        self._batcher.draining = True
        self._schedule_pump()
        await self._jobs.all_answered(timeout_s)

    def batch_done(
        self, worker: WorkerPort, sealed: Sealed, slot: Slot, done: DoneMessage, call_s: float
    ) -> None:
        """A worker finished a batch; its answers are in the slot, which is free afterwards."""
        if done.status is not Status.OK:
            self._refused(worker, sealed, done.status, call_s)
            return
        if sealed.key.model not in self._loads.by_key:
            return  # nobody waits for it, and the model is gone
        load = self._loads.by_key[sealed.key.model]
        model = load.model
        layout = batch_layout(model.dtype, sealed.rows, sealed.key.columns)
        tensor_bytes = sealed.rows * layout.row_bytes
        moved = (len(model.inputs) * tensor_bytes, len(model.outputs) * tensor_bytes)
        load.metrics.computed(worker.device_label, sealed.rows, moved, done, call_s)
        times = BatchTimes(sealed.input_s, call_s)
        first_row, started_s = 0, self._clock()
        for work in sealed.works:
            job: Job = work.job
            if not job.future.done():
                try:
                    outputs = read_piece(work, first_row, layout, slot.output, sealed.moves)
                except ServiceError as error:
                    job.fail(error)  # its client took away the memory that the rows were for
                else:
                    job.piece_done(work, outputs, sealed.rows, done, times)
            first_row += work.rows
        times.output_s = self._clock() - started_s
        load.statistics.computed(sealed.rows, times)
        self.batch_traces.computed(worker, sealed, done, (started_s, call_s), self._clock())

    def _refused(self, worker: WorkerPort, sealed: Sealed, status: Status, call_s: float) -> None:
        expired, outcome = status is Status.EXPIRED, status.name.lower()
        metrics.call_ended_badly(outcome, call_s)
        self.batch_traces.failed(worker, sealed, outcome, self._clock())
        for work in sealed.works:
            work.job.fail(DeadlineExceeded() if expired else ComputeFailed())

    def _look_for_answer(self, job: Job) -> None:
        """Asks the workers for the answer of the only request, for as long as a sleep and a wake-up would take."""
        for _ in range(LOOKS):
            if job.future.done() or not job.executing:
                return
            for worker in tuple(self._workers):
                worker.look()

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
        free.sort(key=attrgetter("credits"), reverse=True)
        for worker in free:
            sealed = self._batcher.seal(worker.models, now_s)
            if sealed is not None:
                self._send(worker, sealed, now_s)
                return True
        return False

    def _send(self, worker: WorkerPort, sealed: Sealed, now_s: float) -> None:
        load = self._loads.by_key[sealed.key.model]
        slot = worker.claim_slot()
        layout = batch_layout(load.model.dtype, sealed.rows, sealed.key.columns)
        started_s = self._clock()
        write_batch(sealed, layout, slot.input, worker.memory)
        sealed.input_s = self._clock() - started_s
        last_deadline_s = max(work.deadline_s for work in sealed.works)
        series = load.metrics
        series.sealed(sealed.rows, len(sealed.works), sealed.trigger)
        for work in sealed.works:
            if work.attempts == 1 and work.offset_rows == 0:
                work.job.sealed(now_s - work.arrived_s)
                series.waited(work.job.cost.queue_s)
        self.batch_traces.sealed(sealed, now_s)
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
