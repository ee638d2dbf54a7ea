"""Fakes of the service's parts: a model, a clock that stands still, a worker that answers when told to.

The fake worker doubles its rows: output n is twice input n. `exact_rows` makes rows that no datatype of the wire
rounds, and no two of which are alike, so an answer tells which row it belongs to.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gatefuse.batching.batcher import Limits, Sealed
from gatefuse.frontend.dispatch.dispatcher import Dispatcher
from gatefuse.frontend.requests.codec import MODEL_DATATYPES, InferRequest
from gatefuse.frontend.shared_memory.lent_memory import NOTHING, Lender
from gatefuse.frontend.worker_port import Slot
from gatefuse.link.arena import tensor_stride
from gatefuse.link.messages import DoneMessage, Status
from gatefuse.link.served_model import ServedModel
from gatefuse.wire import Datatype, decode, encode
from gatefuse_kernels.ledger import Entry

COLUMNS = 3
# What one batch of the fake worker costs, whatever its rows.
ENTRY = Entry("double", "eager", launches=2, read_bytes=100, written_bytes=40, flops=7)
DEVICE_S = 0.25
EXACT_ROWS = 128 * 21

MLP = ServedModel(
    index=0,
    name="ffn",
    kind="swiglu",
    backend="fused",
    description="fused: a fake",
    dtype="bf16",
    layers=(0,),
    columns=COLUMNS,
    max_columns=COLUMNS,
    intermediate=8,
    max_batch_rows=8,
    inputs=("hidden_states",),
    outputs=("output",),
    weights_id="weights",
)
DEEP = replace(MLP, index=1, name="deep", layers=(0, 2, 5), dtype="fp16")
ANY_WIDTH = replace(
    MLP,
    index=2,
    name="scale",
    kind="elementwise",
    backend="eager",
    dtype="fp32",
    columns=0,
    max_columns=16,
    intermediate=0,
    inputs=("x",),
    outputs=("y",),
    weights_id="",
    expression="x * two",
    constants=(("two", 2.0),),
)
PAIR = replace(
    ANY_WIDTH,
    index=3,
    name="pair",
    inputs=("g", "u"),
    outputs=("y", "t"),
    expression="y = g * two; t = u * two",
)
MODELS = {model.name: model for model in (MLP, DEEP, ANY_WIDTH, PAIR)}


def exact_rows(first: int, rows: int, columns: int = COLUMNS) -> NDArray[np.float32]:
    """Rows [rows, columns] number `first` and up, of the EXACT_ROWS that there are.

    Each value and its double have 8 bits of mantissa and a small exponent: FP32, FP16 and BF16 hold them.
    """
    number = np.arange(first, first + rows)
    assert first + rows <= EXACT_ROWS
    value = (1 + number % 128 / 128) * 2.0 ** (number // 128 - 10)
    sign = np.where(np.arange(columns) % 2, -1, 1)
    result: NDArray[np.float32] = (value[:, None] * sign).astype(np.float32)
    return result


def infer_request(
    model: ServedModel, x: NDArray[np.float32], datatype: Datatype = Datatype.FP32, layer: int = 0
) -> InferRequest:
    """A checked request for the rows of x [M, columns], or [inputs, M, columns] where there are several inputs."""
    inputs = x.reshape(len(model.inputs), *x.shape[-2:])
    payloads = tuple(encode(each, datatype) for each in inputs)
    outputs = tuple(range(len(model.outputs)))
    rows, columns = x.shape[-2:]
    return InferRequest(model, layer, rows, columns, datatype, payloads, outputs, "")


class FakeClock:
    """Seconds that pass only when told to."""

    def __init__(self, now_s: float = 1000.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


@dataclass(slots=True)
class FakeSlot:
    """A slot of ordinary memory."""

    input: memoryview
    output: memoryview


@dataclass(slots=True)
class FakeBatch:
    """A batch that the worker was sent and has not answered."""

    sealed: Sealed
    slot: Slot
    last_deadline_s: float


class FakeWorker:
    """A WorkerPort in the same process; it keeps what it is sent until `finish`, or one turn of the loop if eager."""

    device = "cpu"
    name = "worker-0"
    device_label = "cpu:0"
    memory: Lender = NOTHING

    def __init__(
        self,
        dispatcher: Dispatcher,
        models: Mapping[str, ServedModel],
        *,
        slots: int = 1,
        eager: bool = False,
    ) -> None:
        self.models: Mapping[str, ServedModel] = dict(models)
        self._dispatcher = dispatcher
        self._slots = slots
        self._eager = eager
        self.waiting: list[FakeBatch] = []
        self.sent: list[Sealed] = []
        self.got_batch = asyncio.Event()

    @property
    def credits(self) -> int:
        """Free slots."""
        return self._slots - len(self.waiting)

    def connect(self, max_queue_rows: int = 10_000, max_queue_delay_s: float = 0.0) -> None:
        """Tells the dispatcher that this worker is ready."""
        limits = {
            name: Limits(model.max_batch_rows, max_queue_rows, max_queue_delay_s)
            for name, model in self.models.items()
        }
        self._dispatcher.worker_ready(self, limits)

    def claim_slot(self) -> FakeSlot:
        """A slot full of what no row may be left as."""
        size = 8192
        return FakeSlot(memoryview(bytearray(b"\xff" * size)), memoryview(bytearray(size)))

    def send(self, sealed: Sealed, slot: Slot, last_deadline_s: float) -> None:
        """Keeps the batch."""
        batch = FakeBatch(sealed, slot, last_deadline_s)
        self.waiting.append(batch)
        self.sent.append(sealed)
        self.got_batch.set()
        if self._eager:
            asyncio.get_running_loop().call_soon(self.finish)

    def look(self) -> None:
        """It answers when it is told to, not before."""

    def finish(self, status: Status = Status.OK, position: int = 0) -> None:
        """Answers the oldest batch, or the one at `position`."""
        batch = self.waiting.pop(position)
        sealed = batch.sealed
        done = DoneMessage(status, 0, sealed.rows, 0, 0.1, DEVICE_S, (ENTRY,))
        if status is Status.OK:
            model = self.models[sealed.key.model]
            datatype = MODEL_DATATYPES[model.dtype]
            shape = (sealed.rows, sealed.key.columns)
            size = math.prod(shape) * datatype.itemsize
            for number in range(len(model.inputs)):
                start = number * tensor_stride(sealed.rows, size // sealed.rows)
                x = decode(batch.slot.input[start : start + size], datatype, shape)
                doubled = encode(2 * x.astype(np.float32), datatype)
                batch.slot.output[start : start + size] = doubled
        self._dispatcher.batch_done(self, sealed, batch.slot, done, 0.5)
        self._dispatcher.slot_free()

    def die(self) -> None:
        """Takes its batches down with it."""
        lost = [batch.sealed for batch in self.waiting]
        self.waiting.clear()
        self._slots = 0
        self._dispatcher.worker_lost(self, lost)
