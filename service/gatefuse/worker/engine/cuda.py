"""The engine of one GPU: two batches in flight, the copies of one under the compute of the other.

A batch's rows are copied by the GPU straight from the page-locked slot, and its answers straight back into it. Each
lane has its own stream and its own buffers; their computations are ordered one after the other by an event, so
scratch memory and graph memory are shared between lanes, layers and models.
"""

import threading
import time
from collections.abc import Sequence
from functools import partial

import torch

from gatefuse.link.arena import Arena, tensors_bytes
from gatefuse.link.memory import OpenMemory
from gatefuse.link.messages import DoneMessage, Status
from gatefuse.link.served_model import ServedModel
from gatefuse.worker.engine.base import Added, EngineFault, OpenedMemory, Ticket
from gatefuse.worker.engine.device_memory import (
    CudaDriver,
    Driver,
    LockedFile,
    SharedDeviceMemory,
    covers,
    move_rows,
)
from gatefuse.worker.engine.lanes import LANES, Lane, Memory, Placed
from gatefuse.worker.engine.models import LoadedModel, MlpRunner
from gatefuse_kernels.launch.graphs import GraphedMlp


class CudaEngine:
    """Runs batches on one GPU."""

    device = "cuda:0"
    batches_in_flight = LANES
    in_place = True

    def __init__(self, models: Sequence[LoadedModel]) -> None:
        """Serves `models`, each under its index."""
        self._torch_device = torch.device(self.device)
        memory = Memory(models, self._torch_device)
        self._models = {model.served.index: Placed(model, memory) for model in models}
        self._lanes = [Lane(number, self._torch_device) for number in range(LANES)]
        self._in_flight: list[Lane] = []
        # Whoever launches holds it. A model that is added beside the batches runs library products while it is
        # captured, and graphs that one thread captured share the library's workspace.
        self._launching = threading.Lock()
        self._driver: Driver = CudaDriver()

    @property
    def served(self) -> tuple[ServedModel, ...]:
        """What it serves, by index."""
        return tuple(placed.model.served for placed in self._models.values())

    @property
    def graph_pools(self) -> dict[int, tuple[int, int]]:
        """The memory pool that each model's graphs are in, by its index."""
        return {index: placed.memory.pool for index, placed in tuple(self._models.items())}

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
        for placed in self._models.values():
            self._warm_up(placed)

    def add(self, model: LoadedModel) -> Added:
        """See `Engine`. The model has memory of its own: graphs hold on to the buffers they were captured on."""
        placed = Placed(model, Memory((model,), self._torch_device))
        self._warm_up(placed)
        begin = partial(self._models.__setitem__, model.served.index, placed)
        return Added(placed.model.served, begin)

    def remove(self, index: int) -> None:
        """See `Engine`."""
        del self._models[index]

    def attach(self, arena: Arena) -> None:
        """Page-locks the arena, so that the copy engines read and write it in place."""
        _check(torch.cuda.cudart().cudaHostRegister(_address(arena), arena.layout.total_bytes, 0))

    def detach(self, arena: Arena) -> None:
        """Unlocks it."""
        _check(torch.cuda.cudart().cudaHostUnregister(_address(arena)))

    def open_memory(self, message: OpenMemory, fd: int) -> OpenedMemory:
        """See `Engine`."""
        if message.handle:
            return SharedDeviceMemory(message, self._driver, self._torch_device)
        return LockedFile(message, fd, self._driver)

    def close_memory(self, memory: OpenedMemory) -> None:
        """See `Engine`."""
        for lane in self._in_flight:
            lane.finished.synchronize()
        memory.close()

    def submit(self, ticket: Ticket) -> None:
        """Queues copy in, computation and copy out on a free lane."""
        lane = next(lane for lane in self._lanes if lane.ticket is None)
        message = ticket.message
        placed = self._models[message.model]
        model, buffers = placed.model, placed.memory.lanes[lane.number]
        served = model.served
        layout = ticket.arena.layout
        shape = (message.rows, message.columns)
        row_bytes = served.row_bytes(message.columns)
        # The tensors lie in the lane as they lie in the slot, so one copy each way moves them all.
        there = tensors_bytes(len(served.inputs), message.rows, row_bytes)
        back = tensors_bytes(len(served.outputs), message.rows, row_bytes)
        source = _host_bytes(ticket.arena, layout.input_offset(message.slot), there)
        target = _host_bytes(ticket.arena, layout.output_offset(message.slot), back)
        model.ledger.drain()  # what a failed batch left behind is not this one's
        with self._launching, torch.cuda.stream(lane.stream):
            if not covers(ticket.moves, message.rows * row_bytes * len(served.inputs), inward=True):
                buffers.rows[:there].copy_(source, non_blocking=True)
            move_rows(ticket.moves, buffers.rows, inward=True)
            for other in self._in_flight:
                lane.stream.wait_event(other.computed)
            lane.begun.record()
            lane.padded_rows = self._compute(placed, lane, message.layer, shape)
            lane.computed.record()
            if not covers(
                ticket.moves, message.rows * row_bytes * len(served.outputs), inward=False
            ):
                target.copy_(buffers.answers[:back], non_blocking=True)
            move_rows(ticket.moves, buffers.answers, inward=False)
            lane.finished.record()
        lane.entries = tuple(model.ledger.drain())
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

    def _warm_up(self, placed: Placed) -> None:
        for layer, runner in placed.model.runners.items():
            runner.warm_up()
            for lane in self._lanes:
                with self._launching:
                    torch.cuda.synchronize(self._torch_device)
                    self._prepare(placed, lane, layer)
                    torch.cuda.synchronize(self._torch_device)
        placed.model = placed.model.warmed_up(*(each.kernels for each in placed.graphs.values()))

    @staticmethod
    def _prepare(placed: Placed, lane: Lane, layer: int) -> None:
        model, memory = placed.model, placed.memory
        runner = model.runners[layer]
        buffers = memory.lanes[lane.number]
        largest = (model.served.max_batch_rows, model.served.row_limit_columns)
        with torch.cuda.stream(lane.stream):
            for shape in model.warm_up_shapes:
                runner(*buffers.tensors(model, shape))
        lane.stream.synchronize()
        if model.graph_buckets:
            assert isinstance(runner, MlpRunner)
            (x,), (out,) = buffers.tensors(model, largest)
            buckets = model.graph_buckets
            graphed = GraphedMlp(runner.mlp, x, out, buckets, model.ledger, memory.pool)
            graphed.capture()
            placed.graphs[lane.number, layer] = graphed

    @staticmethod
    def _compute(placed: Placed, lane: Lane, layer: int, shape: tuple[int, int]) -> int:
        """Launches the layer on the lane's rows; returns the rows computed, padding included."""
        rows, columns = shape
        model, memory = placed.model, placed.memory
        buffers = memory.lanes[lane.number]
        graphed = placed.graphs.get((lane.number, layer))
        if graphed is None:
            runner = model.runners[layer]
            runner(*buffers.tensors(model, shape))
            return runner.padded_rows(rows)
        bucket = graphed.bucket_for(rows)
        if bucket > rows:
            # A copy of zeros, not a fill: the padding costs no kernel launch, and no row of an earlier batch stays.
            row_bytes = model.served.row_bytes(columns)
            buffers.rows[rows * row_bytes : bucket * row_bytes].copy_(
                memory.zeros[: (bucket - rows) * row_bytes], non_blocking=True
            )
        graphed.replay(bucket)
        return bucket

    @staticmethod
    def _report(lane: Lane, ticket: Ticket) -> DoneMessage:
        return DoneMessage(
            status=Status.OK,
            slot=ticket.message.slot,
            padded_rows=lane.padded_rows,
            batch_id=ticket.message.batch_id,
            inside_s=time.monotonic() - ticket.started_s,
            device_s=lane.begun.elapsed_time(lane.computed) / 1e3,
            entries=lane.entries,
        )


def _is_finished(lane: Lane) -> bool:
    try:
        return bool(lane.finished.query())
    except RuntimeError as error:
        # An asynchronous device error: the context is lost, and every later call would say the same.
        raise EngineFault(str(error)) from error


def _host_bytes(arena: Arena, offset_bytes: int, size_bytes: int) -> torch.Tensor:
    return torch.frombuffer(arena.map, dtype=torch.uint8, count=size_bytes, offset=offset_bytes)


def _address(arena: Arena) -> int:
    return torch.frombuffer(arena.map, dtype=torch.uint8).data_ptr()


def _check(error: object) -> None:
    """Raises EngineFault unless a CUDA runtime call succeeded."""
    code = int(error)  # type: ignore[call-overload]
    if code != 0:
        raise EngineFault(f"the CUDA runtime returned error {code}")
