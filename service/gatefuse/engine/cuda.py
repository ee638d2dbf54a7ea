"""The engine of one GPU: two batches in flight, the copies of one under the compute of the other.

A batch's rows are copied by the GPU straight from the page-locked slot, and its answers straight back into it. Each
lane has its own stream and its own buffers; their computations are ordered one after the other by an event, so
scratch memory and graph memory are shared between lanes, layers and models.
"""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from gatefuse.arena import Arena, tensor_stride, tensors_bytes
from gatefuse.engine.base import EngineFault, Ticket
from gatefuse.engine.models import LoadedModel, MlpRunner
from gatefuse.link import DoneMessage, ServedModel, Status
from gatefuse_kernels.graphs import GraphedMlp
from gatefuse_kernels.ledger import Entry, Ledger

if TYPE_CHECKING:
    from torch.cuda import _POOL_HANDLE as PoolHandle

# The copies of one batch run under the compute of the other; a third would only bind its rows earlier.
LANES = 2


class _Lane:
    """One batch in flight: a stream, device buffers for its rows and answers, and the events that time it."""

    def __init__(self, region_bytes: int, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device)
        self.rows = torch.zeros(region_bytes, dtype=torch.uint8, device=device)
        self.answers = torch.zeros(region_bytes, dtype=torch.uint8, device=device)
        self.begun = torch.cuda.Event(enable_timing=True)
        self.computed = torch.cuda.Event(enable_timing=True)
        self.finished = torch.cuda.Event()
        self.graphs: dict[tuple[int, int], GraphedMlp] = {}
        self.ticket: Ticket | None = None
        self.padded_rows = 0
        self.entries: tuple[Entry, ...] = ()

    def tensors(
        self, model: LoadedModel, shape: tuple[int, int]
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The model's inputs and outputs for a batch of `shape`, in the lane's buffers."""
        served = model.served
        return (
            _tensors(self.rows, len(served.inputs), shape, model.dtype),
            _tensors(self.answers, len(served.outputs), shape, model.dtype),
        )


class CudaEngine:
    """Runs batches on one GPU."""

    device = "cuda:0"
    batches_in_flight = LANES

    def __init__(self, models: Sequence[LoadedModel], ledger: Ledger) -> None:
        """`ledger` is the one the models' runners count in."""
        self._models = models
        self._ledger = ledger
        self._torch_device = torch.device(self.device)
        region_bytes = max(model.served.region_bytes for model in models)
        self._lanes = [_Lane(region_bytes, self._torch_device) for _ in range(LANES)]
        self._in_flight: list[_Lane] = []
        self._zeros = torch.zeros(region_bytes, dtype=torch.uint8, device=self._torch_device)

    @property
    def served(self) -> tuple[ServedModel, ...]:
        """What it serves, by index."""
        return tuple(model.served for model in self._models)

    @property
    def has_room(self) -> bool:
        """True while a lane is free."""
        return len(self._in_flight) < len(self._lanes)

    @property
    def busy(self) -> bool:
        """True while a batch is on the device."""
        return bool(self._in_flight)

    def warm_up(self) -> None:
        """Compiles every runner, runs it once, and captures its graphs for both lanes."""
        pool = torch.cuda.graph_pool_handle()
        for index, model in enumerate(self._models):
            for layer, runner in model.runners.items():
                runner.warm_up()
                for lane in self._lanes:
                    self._prepare(lane, index, layer, pool)
        torch.cuda.synchronize(self._torch_device)
        self._ledger.drain()

    def attach(self, arena: Arena) -> None:
        """Page-locks the arena, so that the copy engines read and write it in place."""
        _check(torch.cuda.cudart().cudaHostRegister(_address(arena), arena.layout.total_bytes, 0))

    def detach(self, arena: Arena) -> None:
        """Unlocks it."""
        _check(torch.cuda.cudart().cudaHostUnregister(_address(arena)))

    def submit(self, ticket: Ticket) -> None:
        """Queues copy in, computation and copy out on a free lane."""
        lane = next(lane for lane in self._lanes if lane.ticket is None)
        message = ticket.message
        model = self._models[message.model]
        served = model.served
        layout = ticket.arena.layout
        shape = (message.rows, message.columns)
        row_bytes = served.row_bytes(message.columns)
        # The tensors lie in the lane as they lie in the slot, so one copy each way moves them all.
        there = tensors_bytes(len(served.inputs), message.rows, row_bytes)
        back = tensors_bytes(len(served.outputs), message.rows, row_bytes)
        source = _host_bytes(ticket.arena, layout.input_offset(message.slot), there)
        target = _host_bytes(ticket.arena, layout.output_offset(message.slot), back)
        self._ledger.drain()  # what a failed batch left behind is not this one's
        with torch.cuda.stream(lane.stream):
            lane.rows[:there].copy_(source, non_blocking=True)
            for other in self._in_flight:
                lane.stream.wait_event(other.computed)
            lane.begun.record()
            lane.padded_rows = self._compute(lane, model, message.layer, shape)
            lane.computed.record()
            target.copy_(lane.answers[:back], non_blocking=True)
            lane.finished.record()
        lane.entries = tuple(self._ledger.drain())
        lane.ticket = ticket
        self._in_flight.append(lane)

    def completed(self) -> list[tuple[Ticket, DoneMessage]]:
        """The batches whose answers have arrived in their slots, oldest first."""
        done = []
        while self._in_flight and _is_finished(self._in_flight[0]):
            lane = self._in_flight.pop(0)
            assert lane.ticket is not None
            ticket, lane.ticket = lane.ticket, None
            done.append((ticket, self._report(lane, ticket)))
        return done

    def _prepare(self, lane: _Lane, index: int, layer: int, pool: "PoolHandle") -> None:
        model = self._models[index]
        runner = model.runners[layer]
        largest = (model.served.max_batch_rows, model.served.row_limit_columns)
        with torch.cuda.stream(lane.stream):
            for shape in model.warm_up_shapes:
                runner(*lane.tensors(model, shape))
        lane.stream.synchronize()
        if model.graph_buckets:
            assert isinstance(runner, MlpRunner)
            (x,), (out,) = lane.tensors(model, largest)
            graphed = GraphedMlp(runner.mlp, x, out, model.graph_buckets, self._ledger, pool)
            graphed.capture()
            lane.graphs[index, layer] = graphed

    def _compute(self, lane: _Lane, model: LoadedModel, layer: int, shape: tuple[int, int]) -> int:
        """Launches the layer on the lane's rows; returns the rows computed, padding included."""
        rows, columns = shape
        graphed = lane.graphs.get((model.served.index, layer))
        if graphed is None:
            runner = model.runners[layer]
            runner(*lane.tensors(model, shape))
            return runner.padded_rows(rows)
        bucket = graphed.bucket_for(rows)
        if bucket > rows:
            # A copy of zeros, not a fill: the padding costs no kernel launch, and no row of an earlier batch stays.
            row_bytes = model.served.row_bytes(columns)
            lane.rows[rows * row_bytes : bucket * row_bytes].copy_(
                self._zeros[: (bucket - rows) * row_bytes], non_blocking=True
            )
        graphed.replay(bucket)
        return bucket

    @staticmethod
    def _report(lane: _Lane, ticket: Ticket) -> DoneMessage:
        return DoneMessage(
            status=Status.OK,
            slot=ticket.message.slot,
            padded_rows=lane.padded_rows,
            batch_id=ticket.message.batch_id,
            inside_s=time.monotonic() - ticket.started_s,
            device_s=lane.begun.elapsed_time(lane.computed) / 1e3,
            entries=lane.entries,
        )


def _is_finished(lane: _Lane) -> bool:
    try:
        return bool(lane.finished.query())
    except RuntimeError as error:
        # An asynchronous device error: the context is lost, and every later call would say the same.
        raise EngineFault(str(error)) from error


def _tensors(
    buffer: torch.Tensor, count: int, shape: tuple[int, int], dtype: torch.dtype
) -> list[torch.Tensor]:
    """`count` tensors of `shape`, one after the other in a buffer of bytes."""
    rows, columns = shape
    size = rows * columns * dtype.itemsize
    stride = tensor_stride(rows, columns * dtype.itemsize)
    return [
        buffer[number * stride :][:size].view(dtype).view(rows, columns) for number in range(count)
    ]


def _host_bytes(arena: Arena, offset_bytes: int, size_bytes: int) -> torch.Tensor:
    return torch.frombuffer(arena.map, dtype=torch.uint8, count=size_bytes, offset=offset_bytes)


def _address(arena: Arena) -> int:
    return torch.frombuffer(arena.map, dtype=torch.uint8).data_ptr()


def _check(error: object) -> None:
    """Raises EngineFault unless a CUDA runtime call succeeded."""
    code = int(error)  # type: ignore[call-overload]
    if code != 0:
        raise EngineFault(f"the CUDA runtime returned error {code}")
