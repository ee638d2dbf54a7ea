"""What batches in flight on one GPU have for themselves: a stream and buffers each; and what their models have."""

from collections.abc import Iterable

import torch

from gatefuse.link.arena import tensor_stride
from gatefuse.worker.engine.base import Ticket
from gatefuse.worker.engine.models import LoadedModel
from gatefuse_kernels.launch.graphs import GraphedMlp
from gatefuse_kernels.ledger import Entry

# The copies of one batch run under the compute of the other; a third would only bind its rows earlier.
LANES = 2


class Buffers:
    """Device memory for the rows and answers of one batch, static because graphs are captured on it."""

    def __init__(self, region_bytes: int, device: torch.device) -> None:
        self.rows = torch.zeros(region_bytes, dtype=torch.uint8, device=device)
        self.answers = torch.zeros(region_bytes, dtype=torch.uint8, device=device)

    def tensors(
        self, model: LoadedModel, shape: tuple[int, int]
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The model's inputs and outputs for a batch of `shape`."""
        served = model.served
        return (
            tensors_in(self.rows, len(served.inputs), shape, model.dtype),
            tensors_in(self.answers, len(served.outputs), shape, model.dtype),
        )


class Memory:
    """Each lane's buffers, and zeros to pad with; models that are loaded together share them."""

    def __init__(self, models: Iterable[LoadedModel], device: torch.device) -> None:
        region_bytes = max((model.served.region_bytes for model in models), default=1)
        self.lanes = tuple(Buffers(region_bytes, device) for _ in range(LANES))
        self.zeros = torch.zeros(region_bytes, dtype=torch.uint8, device=device)
        self.pool = torch.cuda.graph_pool_handle()


class Placed:
    """A model on the device, with the memory its batches use and its graphs, by lane and layer."""

    def __init__(self, model: LoadedModel, memory: Memory) -> None:
        self.model = model
        self.memory = memory
        self.graphs: dict[tuple[int, int], GraphedMlp] = {}


class Lane:
    """One batch in flight: a stream, and the events that time it."""

    def __init__(self, number: int, device: torch.device) -> None:
        self.number = number
        self.stream = torch.cuda.Stream(device)
        self.begun = torch.cuda.Event(enable_timing=True)
        self.computed = torch.cuda.Event(enable_timing=True)
        self.finished = torch.cuda.Event()
        self.ticket: Ticket | None = None
        self.padded_rows = 0
        self.entries: tuple[Entry, ...] = ()


def tensors_in(
    buffer: torch.Tensor, count: int, shape: tuple[int, int], dtype: torch.dtype
) -> list[torch.Tensor]:
    """`count` tensors of `shape`, one after the other in a buffer of bytes."""
    rows, columns = shape
    size = rows * columns * dtype.itemsize
    stride = tensor_stride(rows, columns * dtype.itemsize)
    return [
        buffer[number * stride :][:size].view(dtype).view(rows, columns) for number in range(count)
    ]
