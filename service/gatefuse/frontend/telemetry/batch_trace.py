"""Which batches are followed, and what is known of one when it has ended."""

import logging
from collections.abc import Callable
from typing import NamedTuple

from gatefuse.batching.batcher import Sealed
from gatefuse.frontend.worker_port import WorkerPort
from gatefuse.link.messages import DoneMessage
from gatefuse.link.served_model import ServedModel
from gatefuse.trace_context import BatchTrace, new_root

log = logging.getLogger(__name__)


class BatchRecord(NamedTuple):
    """A batch that has ended; `done` is None where no rows came back.

    Times are seconds of the machine's monotonic clock. `call_s` is when it was sent, and when its answer was there.
    """

    trace: BatchTrace
    model: ServedModel
    layer: int
    rows: int
    requests: int
    trigger: str
    replica: str
    device: str
    outcome: str
    done: DoneMessage | None
    call_s: tuple[float, float]
    ended_s: float


class BatchTraces:
    """Follows the batches that hold rows of a request whose spans are kept. Costs a test for each batch when off."""

    def __init__(self, ended: Callable[[BatchRecord], None] | None = None) -> None:
        """`ended` gets each followed batch; None follows none."""
        self._ended = ended

    def sealed(self, sealed: Sealed, now_s: float) -> None:
        """A batch is about to be sent: begins its trace if one of its requests has one."""
        if self._ended is None:
            return
        traces = [work.job.trace for work in sealed.works if work.job.trace is not None]
        if not traces:
            return
        root = new_root()
        for trace in traces:
            trace.batches.append(root)
        sealed.trace = BatchTrace(root, tuple(trace.context for trace in traces), now_s)

    def computed(
        self,
        worker: WorkerPort,
        sealed: Sealed,
        done: DoneMessage,
        back: tuple[float, float],
        now_s: float,
    ) -> None:
        """Its rows have been handed out; `back` is when they came back, and how long the worker had them."""
        if sealed.trace is not None:
            back_s, call_s = back
            self._end(worker, sealed, "ok", done, (back_s - call_s, back_s), now_s)

    def failed(self, worker: WorkerPort, sealed: Sealed, outcome: str, now_s: float) -> None:
        """No rows came back; its worker refused it, or is gone."""
        if (trace := sealed.trace) is not None:
            self._end(
                worker, sealed, outcome, None, (trace.sealed_s + sealed.input_s, now_s), now_s
            )

    def _end(
        self,
        worker: WorkerPort,
        sealed: Sealed,
        outcome: str,
        done: DoneMessage | None,
        call_s: tuple[float, float],
        now_s: float,
    ) -> None:
        assert self._ended is not None
        assert sealed.trace is not None
        record = BatchRecord(
            trace=sealed.trace,
            model=worker.models[sealed.key.model],
            layer=sealed.key.layer,
            rows=sealed.rows,
            requests=len({work.job for work in sealed.works}),
            trigger=sealed.trigger,
            replica=worker.name,
            device=worker.device_label,
            outcome=outcome,
            done=done,
            call_s=call_s,
            ended_s=now_s,
        )
        try:
            self._ended(record)
        except Exception:
            log.exception("a batch could not be told of")  # which is no reason to run it again
