"""What a worker says of its GPU: which one it is, and what the allocator holds there."""

from collections.abc import Callable, Mapping

import torch

from gatefuse.device_report import DeviceReport


class CudaReport:
    """Asked for from the control threads, beside the batches."""

    def __init__(
        self,
        device: torch.device,
        weight_bytes: Callable[[], int],
        graph_pools: Callable[[], Mapping[int, tuple[int, int]]],
    ) -> None:
        """`weight_bytes` are those of all loaded weights; `graph_pools` is where each model's graphs were captured."""
        self._device = device
        self._weight_bytes = weight_bytes
        self._graph_pools = graph_pools
        self._uuid = str(torch.cuda.get_device_properties(device).uuid).removeprefix("GPU-")
        self._measured: tuple[Mapping[int, tuple[int, int]], int] = ({}, 0)

    def __call__(self, errors: dict[str, int]) -> DeviceReport:
        """The report now; `errors` are the process' own counts of faults."""
        memory = {
            "weights": self._weight_bytes(),
            "graph_pool": self._graph_pool_bytes(),
            "reserved": torch.cuda.memory_reserved(self._device),
            "peak": torch.cuda.max_memory_allocated(self._device),
        }
        return DeviceReport(self._uuid, memory, errors)

    def _graph_pool_bytes(self) -> int:
        # A look at every segment takes milliseconds, and pools change only with the models.
        pools = self._graph_pools()
        if pools != self._measured[0]:
            segments = torch.cuda.memory_snapshot()
            ours = set(pools.values())
            size = sum(s["total_size"] for s in segments if tuple(s["segment_pool_id"]) in ours)
            self._measured = pools, size
        return self._measured[1]
