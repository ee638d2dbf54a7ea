"""The engine of a machine without a GPU: reads and writes the slot in place, one batch at a time."""

import time
from collections.abc import Iterable
from functools import lru_cache, partial
from typing import NamedTuple

import torch

from gatefuse.link.arena import Arena, tensor_stride
from gatefuse.link.memory import OpenMemory
from gatefuse.link.messages import DoneMessage, Status
from gatefuse.link.served_model import ServedModel
from gatefuse.worker.engine.base import Added, OpenedMemory, Ticket
from gatefuse.worker.engine.models import LoadedModel


class CpuEngine:
    """Runs each batch when it is submitted."""

    device = "cpu"
    # There is no copy to hide under the compute: a second batch would only bind its rows early.
    batches_in_flight = 1
    busy = False
    # A client may shorten its memory at any time, and the CPU must not touch what is gone.
    in_place = False

    def __init__(self, models: Iterable[LoadedModel]) -> None:
        """Serves `models`, each under its index."""
        self._models = {model.served.index: model for model in models}
        self._done: list[tuple[Ticket, DoneMessage]] = []

    @property
    def served(self) -> tuple[ServedModel, ...]:
        """What it serves, by index."""
        return tuple(model.served for model in self._models.values())

    @property
    def has_room(self) -> bool:
        """One batch at a time; the next waits in the link."""
        return not self._done

    def warm_up(self) -> None:
        """Runs every layer once at the smallest and at the largest batch."""
        self._models = {index: _warmed_up(model) for index, model in self._models.items()}

    def add(self, model: LoadedModel) -> Added:
        """See `Engine`."""
        warm = _warmed_up(model)
        return Added(warm.served, partial(self._models.__setitem__, model.served.index, warm))

    def remove(self, index: int) -> None:
        """See `Engine`."""
        del self._models[index]

    def attach(self, arena: Arena) -> None:
        """Nothing to do: the memory is the CPU's own."""

    def detach(self, arena: Arena) -> None:
        """Lets the arena's memory go."""
        _tensors.cache_clear()

    def open_memory(self, message: OpenMemory, fd: int) -> OpenedMemory:
        """See `Engine`."""
        raise ValueError("the frontend copies the rows")

    def close_memory(self, memory: OpenedMemory) -> None:
        """See `Engine`."""

    def submit(self, ticket: Ticket) -> None:
        """Computes the batch from the slot's input into its output."""
        message = ticket.message
        model = self._models[message.model]
        runner = model.runners[message.layer]
        layout = ticket.arena.layout
        shape = (message.rows, message.columns)
        source = Region(ticket.arena, layout.input_offset(message.slot), len(model.served.inputs))
        target = Region(ticket.arena, layout.output_offset(message.slot), len(model.served.outputs))
        inputs = _tensors(source, shape, model.dtype)
        outputs = _tensors(target, shape, model.dtype)
        model.ledger.drain()  # what a failed batch left behind is not this one's
        begun_s = time.perf_counter()
        runner(inputs, outputs)
        device_s = time.perf_counter() - begun_s
        done = DoneMessage(
            status=Status.OK,
            slot=message.slot,
            padded_rows=runner.padded_rows(message.rows),
            batch_id=message.batch_id,
            inside_s=time.monotonic() - ticket.started_s,
            device_s=device_s,
            entries=tuple(model.ledger.drain()),
        )
        self._done.append((ticket, done))

    def completed(self) -> list[tuple[Ticket, DoneMessage]]:
        """The batch just computed."""
        done, self._done = self._done, []
        return done


class Region(NamedTuple):
    """A slot's region from `offset_bytes` of the arena on, and how many tensors it holds."""

    arena: Arena
    offset_bytes: int
    tensors: int


# The same few slots and shapes come again and again.
@lru_cache(maxsize=1024)
def _tensors(
    region: Region, shape: tuple[int, int], dtype: torch.dtype
) -> tuple[torch.Tensor, ...]:
    """The tensors of a region, each of `shape`, in place."""
    rows, columns = shape
    stride = tensor_stride(rows, columns * dtype.itemsize)
    return tuple(
        torch.frombuffer(
            region.arena.map,
            dtype=dtype,
            count=rows * columns,
            offset=region.offset_bytes + number * stride,
        ).view(shape)
        for number in range(region.tensors)
    )


def _warmed_up(model: LoadedModel) -> LoadedModel:
    for runner in model.runners.values():
        runner.warm_up()
        for shape in model.warm_up_shapes:
            runner(*_spare_tensors(model, shape))
    return model.warmed_up()


def _spare_tensors(
    model: LoadedModel, shape: tuple[int, int]
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Inputs and outputs of a batch that nobody sent."""
    served = model.served
    return (
        [torch.zeros(shape, dtype=model.dtype) for _ in served.inputs],
        [torch.empty(shape, dtype=model.dtype) for _ in served.outputs],
    )
