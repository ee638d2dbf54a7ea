"""A request on its way: from admission until its handler has an answer."""

import asyncio

from gatefuse.batcher import BatchKey, Limits, Work
from gatefuse.codec import Cost, InferRequest, Outputs
from gatefuse.errors import ServiceError
from gatefuse.link import DoneMessage


class Job:
    """A request until its answer: the pieces its rows travel in, and the future its handler waits on.

    A request above max_batch_rows is several works; its output is joined when the last of them is back.
    """

    __slots__ = (
        "_pending",
        "_pieces",
        "accepted_s",
        "cost",
        "future",
        "key",
        "request",
        "timer",
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
        self.cost = Cost()
        self.timer: asyncio.TimerHandle | None = None
        self.key = key = BatchKey(request.model.name, request.layer, request.columns)
        largest = limits.max_batch_rows
        self.works = [
            Work(key, min(largest, request.rows - first), accepted_s, deadline_s, self, first)
            for first in range(0, request.rows, largest)
        ]
        self._pending = len(self.works)
        self._pieces: list[Outputs] = [()] * self._pending

    @property
    def executing(self) -> bool:
        """True when some of its rows are at a worker."""
        return any(not work.queued and work.attempts for work in self.works)

    def piece_done(self, work: Work, outputs: Outputs, batch_rows: int, done: DoneMessage) -> None:
        """One piece is back: notes its rows and what its batch cost; the last one answers the request."""
        index = self.works.index(work)
        if self._pieces[index]:
            return  # its batch ran twice: the first answer stands
        self._pieces[index] = outputs
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
