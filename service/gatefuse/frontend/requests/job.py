"""A request on its way: from admission until its handler has an answer."""

import asyncio
import math

from gatefuse.batching.batcher import BatchKey, Limits, Work
from gatefuse.errors import ServiceError
from gatefuse.frontend.requests.codec import Cost, InferRequest, Outputs
from gatefuse.frontend.statistics import BatchTimes
from gatefuse.link.messages import DoneMessage
from gatefuse.trace_context import RequestTrace


class Left(asyncio.CancelledError):
    """A call was cancelled while its rows were `queued`, `executing` or `replying`."""

    def __init__(self, phase: str) -> None:
        """`phase` is that of its job."""
        super().__init__()
        self.phase = phase


class Job:
    """A request until its answer: the pieces its rows travel in, and the future its handler waits on.

    A request above max_batch_rows is several works; its output is joined when the last of them is back.
    """

    __slots__ = (
        "_pending",
        "_pieces",
        "accepted_s",
        "answered",
        "cost",
        "deadline_s",
        "future",
        "key",
        "queue_deadline_s",
        "request",
        "timer",
        "times",
        "trace",
        "works",
    )

    def __init__(
        self,
        request: InferRequest,
        limits: Limits,
        future: "asyncio.Future[Outputs]",
        accepted_s: float,
        deadline_s: float,
    ) -> None:
        """`future` gets the outputs' rows in the request's datatype, or a ServiceError."""
        self.request = request
        self.future = future
        self.accepted_s = accepted_s
        self.deadline_s = deadline_s
        self.answered = False
        self.times = BatchTimes()
        self.cost = Cost()
        self.timer: asyncio.TimerHandle | None = None
        self.trace: RequestTrace | None = None  # of a request whose spans are kept
        self.key = key = BatchKey(request.model.key, request.layer, request.columns)
        largest = limits.max_batch_rows
        level = limits.priorities.level(request.priority)
        self.queue_deadline_s = accepted_s + limits.policy_of(level).timeout_s(request.timeout_us)
        self.works = [
            Work(
                key,
                min(largest, request.rows - first),
                accepted_s,
                deadline_s,
                self,
                first,
                level=level,
                queue_deadline_s=self.queue_deadline_s,
            )
            for first in range(0, request.rows, largest)
        ]
        self._pending = len(self.works)
        self._pieces: list[Outputs] = [()] * self._pending

    @property
    def executing(self) -> bool:
        """True when some of its rows are at a worker."""
        return any(not work.queued and work.attempts for work in self.works)

    @property
    def phase(self) -> str:
        """Where its rows are: `queued`, `executing`, or on their way back: `replying`."""
        if self.future.done() and not self.future.cancelled():
            return "replying"
        return "executing" if self.executing else "queued"

    @property
    def untouched(self) -> bool:
        """True while none of its rows was sealed into a batch; the queue may have let go of them."""
        return not any(work.attempts for work in self.works)

    def sealed(self, wait_s: float) -> None:
        """Its first rows were sealed: it has waited for `wait_s`, and the rest may take what time it needs."""
        self.cost.queue_s = wait_s
        for work in self.works:
            work.queue_deadline_s = math.inf

    def piece_done(
        self,
        work: Work,
        outputs: Outputs,
        batch_rows: int,
        done: DoneMessage,
        times: BatchTimes,
    ) -> None:
        """One piece is back: notes its rows and what its batch cost; the last one answers the request."""
        index = self.works.index(work)
        if self._pieces[index]:
            return  # its batch ran twice: the first answer stands
        self._pieces[index] = outputs
        self.times = times
        cost = self.cost
        cost.compute_s += done.device_s
        cost.batch_rows += batch_rows
        for entry in done.entries:
            cost.kernel_launches += entry.launches
            cost.bytes_moved += entry.read_bytes + entry.written_bytes
        self._pending -= 1
        if self._pending == 0:
            pieces = self._pieces
            self.future.set_result(pieces[0] if len(pieces) == 1 else _joined(pieces))

    def fail(self, error: ServiceError) -> None:
        """Answers the request with an error, unless it has an answer already."""
        if not self.future.done():
            self.future.set_exception(error)


def _joined(pieces: list[Outputs]) -> Outputs:
    """Each output's rows out of the pieces that a request was cut into."""
    return tuple(map(b"".join, zip(*pieces, strict=True)))
