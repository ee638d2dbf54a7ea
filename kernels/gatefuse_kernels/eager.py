"""The unfused baseline: five torch ops, each reading and writing whole matrices."""

from collections.abc import Callable
from typing import NamedTuple

import torch

from gatefuse_kernels import traffic
from gatefuse_kernels.device_profile import profile_of
from gatefuse_kernels.launch.launches import captured_kernels
from gatefuse_kernels.ledger import Ledger
from gatefuse_kernels.mlp import check_call
from gatefuse_kernels.plan import Algorithm, Plan, RowPlans, graph_buckets
from gatefuse_kernels.reference import activate_
from gatefuse_kernels.shapes import DType, MlpShape, row_buckets
from gatefuse_kernels.traffic import KernelTraffic, helper_launch
from gatefuse_kernels.weights.packed import MlpWeights
from gatefuse_kernels.workspace import apart_rows, needs_apart_rows, temporary

_Op = Callable[[], object]

_VECTOR_BYTES = 16
_LIBRARY = RowPlans.of_one(Plan(Algorithm.LIBRARY, None, None, "the unfused baseline"))

_EVERY_COUNT_UP_TO = 512
"""Row counts that `warm_up` runs and measures one by one (a fraction of a millisecond each)."""


class _Key(NamedTuple):
    """What cuBLAS chooses its kernels by."""

    shape: MlpShape
    dtype: DType
    device: torch.device
    rows: int
    misalignment: int


_measured: dict[_Key, tuple[KernelTraffic, ...]] = {}
"""Launches by key, shared by all layers and models of a shape."""


class EagerMlp:
    """gate, up, activation, multiply, down: one torch op each, results kept in place.

    On CUDA a product may launch a helper beside its GEMM (cuBLAS's split-K reduction). How many is
    measured once per row count, by a capture that runs nothing: in `warm_up` for every count up to
    512 and for the row buckets above, for any other at its first call.
    """

    backend = "eager"

    def __init__(self, weights: MlpWeights, ledger: Ledger, max_rows: int) -> None:
        """Compute with `weights` where they live."""
        self._weights = weights
        self._ledger = ledger
        self._max_rows = max_rows

    @property
    def description(self) -> str:
        """One sentence: what runs."""
        return f"eager: five torch ops on {self._weights.device.type}, each rounding its result"

    @property
    def graph_buckets(self) -> tuple[int, ...]:
        """See `Mlp`."""
        weights = self._weights
        if weights.device.type != "cuda":
            return ()
        device = profile_of(weights.device)
        return graph_buckets(self._max_rows, weights.shape, weights.dtype, device, _LIBRARY)

    def padded_rows(self, rows: int) -> int:
        """No padding."""
        return rows

    def warm_up(self) -> None:
        """Load what cuBLAS picks for each row count, and measure its launches."""
        like = self._weights.down
        counts = set(row_buckets(self._max_rows))
        if like.device.type == "cuda":
            counts.update(range(1, min(self._max_rows, _EVERY_COUNT_UP_TO) + 1))
        x = torch.zeros(self._max_rows, like.shape[0], dtype=like.dtype, device=like.device)
        out = torch.empty_like(x)
        for rows in sorted(counts, reverse=True):
            if self._key(x[:rows], out[:rows]) in _measured:
                continue
            ops = self._ops(x[:rows], out[:rows])
            for op in ops:
                op()
            self._launches(x[:rows], out[:rows], ops)

    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """Run the five ops; see `Mlp`."""
        rows = check_call(x, out, self._weights, self._max_rows)
        if rows == 0:
            return
        ops = self._ops(x, out)
        for op in ops:
            op()
        for launch in self._launches(x, out, ops):
            self._ledger.count(launch)

    def _ops(self, x: torch.Tensor, out: torch.Tensor) -> tuple[_Op, ...]:
        weights = self._weights
        rows, intermediate = x.shape[0], weights.down.shape[1]
        if needs_apart_rows(x.dtype, x.device, x.shape[1]):
            x = apart_rows("eager_x", x, *x.shape).copy_(x)
        gate = apart_rows("eager_gate", x, rows, intermediate)
        up = temporary("eager_up", x, rows, intermediate)
        return (
            lambda: torch.mm(x, weights.gate.t(), out=gate),
            lambda: torch.mm(x, weights.up.t(), out=up),
            lambda: activate_(gate, weights.activation),
            lambda: gate.mul_(up),
            lambda: torch.mm(gate, weights.down.t(), out=out),
        )

    def _key(self, x: torch.Tensor, out: torch.Tensor) -> _Key:
        weights = self._weights
        misalignment = (x.data_ptr() | out.data_ptr()) % _VECTOR_BYTES
        return _Key(weights.shape, weights.dtype, weights.device, x.shape[0], misalignment)

    def _launches(
        self, x: torch.Tensor, out: torch.Tensor, ops: tuple[_Op, ...]
    ) -> tuple[KernelTraffic, ...]:
        weights = self._weights
        plan = traffic.eager_mlp(weights.shape, x.shape[0], weights.dtype.itemsize)
        if weights.device.type != "cuda":
            return plan
        key = self._key(x, out)
        if key in _measured:
            return _measured[key]
        if torch.cuda.is_current_stream_capturing():
            # Cannot capture inside a capture; the graph's own node count checks the five.
            return plan
        with torch.cuda.device(weights.device):
            _measured[key] = tuple(
                launch
                for op, base in zip(ops, plan, strict=True)
                for launch in _with_helpers(base, len(captured_kernels(op)))
            )
        return _measured[key]


def _with_helpers(base: KernelTraffic, launches: int) -> tuple[KernelTraffic, ...]:
    return (base, *[helper_launch(base)] * (launches - 1))
