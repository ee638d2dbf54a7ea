"""One CUDA graph per row bucket of an MLP: a replay costs one call, whatever it launches."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from gatefuse_kernels.launch.launches import capture_stream, kernel_names
from gatefuse_kernels.ledger import Ledger, Recipe
from gatefuse_kernels.mlp import Capturable
from gatefuse_kernels.shapes import bucket_for

if TYPE_CHECKING:
    from torch.cuda import _POOL_HANDLE as PoolHandle


@dataclass(frozen=True, slots=True)
class _Captured:
    graph: torch.cuda.CUDAGraph
    recipe: Recipe


class GraphedMlp:
    """Graphs of one MLP that read and write two static buffers, shared with other MLPs.

    Replays of graphs that share buffers or a pool must follow one another, on one stream or by
    events; so must those with library products that one thread captured on one device, which share
    the library's workspace.
    """

    def __init__(
        self,
        mlp: Capturable,
        x_buffer: torch.Tensor,
        out_buffer: torch.Tensor,
        buckets: tuple[int, ...],
        ledger: Ledger,
        pool: "PoolHandle",
    ) -> None:
        """Prepare; nothing is captured yet.

        Args:
            mlp: what to capture; it must count in `ledger`.
            x_buffer: `[B, H]`, contiguous, B at least the largest bucket.
            out_buffer: `[B, H]`, likewise.
            buckets: ascending row counts.
            ledger: records the recipes and counts the replays.
            pool: memory pool the graphs share, from `torch.cuda.graph_pool_handle()`.

        Raises:
            ValueError: no buckets, not ascending, or the buffers are too small.
        """
        if not buckets or list(buckets) != sorted(set(buckets)) or buckets[0] < 1:
            raise ValueError(f"buckets must be ascending and positive, got {buckets}")
        if min(x_buffer.shape[0], out_buffer.shape[0]) < buckets[-1]:
            raise ValueError(f"the buffers have fewer rows than the largest bucket {buckets[-1]}")
        self._mlp = mlp
        self._x = x_buffer
        self._out = out_buffer
        self._buckets = buckets
        self._ledger = ledger
        self._pool = pool
        self._captured: dict[int, _Captured] = {}

    def capture(self) -> None:
        """Warm the MLP up and capture every bucket, the largest first so that the pool fits it.

        Raises:
            RuntimeError: a recipe disagrees with the kernel nodes of its graph.
        """
        self._mlp.warm_up()
        with torch.cuda.device(self._x.device):
            stream = capture_stream(torch.cuda.current_device())
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for bucket in reversed(self._buckets):
                    self._captured[bucket] = self._capture_bucket(bucket)
            torch.cuda.current_stream().wait_stream(stream)

    @property
    def kernels(self) -> frozenset[str]:
        """The names of what some bucket launches."""
        return frozenset(
            name for captured in self._captured.values() for name in captured.recipe.kernels
        )

    def bucket_for(self, rows: int) -> int:
        """The smallest bucket that holds `rows`.

        Raises:
            ValueError: `rows` exceeds the largest bucket.
        """
        return bucket_for(rows, self._buckets)

    def replay(self, bucket: int) -> None:
        """Run a bucket on the current stream: x_buffer[:bucket] in, out_buffer[:bucket] out.

        Raises:
            KeyError: the bucket was not captured.
        """
        captured = self._captured[bucket]
        captured.graph.replay()
        self._ledger.replay(captured.recipe)

    def recipe(self, bucket: int) -> Recipe:
        """The launches of one replay of `bucket`.

        Raises:
            KeyError: the bucket was not captured.
        """
        return self._captured[bucket].recipe

    def _capture_bucket(self, bucket: int) -> _Captured:
        x, out = self._x[:bucket], self._out[:bucket]
        # Run once outside: whatever initialises lazily must not do so inside a capture. Those
        # counts are not a recipe, so they land in a discarded one.
        with self._ledger.recording():
            self._mlp(x, out)
        torch.cuda.current_stream().synchronize()
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        with self._ledger.recording() as recipe:
            # thread_local: other threads may allocate or copy while this one captures.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                self._mlp(x, out)
            finally:
                graph.capture_end()
        names = kernel_names(graph.raw_cuda_graph())
        if len(names) != recipe.launches:
            raise RuntimeError(
                f"the graph of {bucket} rows has {len(names)} kernels ({', '.join(names)}) but "
                f"{recipe.launches} were counted ({recipe.kernels})"
            )
        graph.instantiate()
        return _Captured(graph, recipe)
