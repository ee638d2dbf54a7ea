"""The fused MLP on a GPU: whatever its plan says, mostly two Triton launches."""

from typing import NamedTuple

import torch

from gatefuse_kernels.device_profile import profile_of
from gatefuse_kernels.launch.launches import capture_stream, captured_kernels
from gatefuse_kernels.ledger import Ledger
from gatefuse_kernels.mlp import check_call
from gatefuse_kernels.plan import Algorithm, Plan, PlanTable, graph_buckets, plan_traffic, plans_for
from gatefuse_kernels.shapes import DType, MlpShape
from gatefuse_kernels.swiglu.alignment import run_aligned
from gatefuse_kernels.swiglu.helpers import with_helpers
from gatefuse_kernels.swiglu.launcher import Launcher
from gatefuse_kernels.traffic import KernelTraffic
from gatefuse_kernels.weights.packed import MlpWeights

_EVERY_COUNT_UP_TO = 512
"""Row counts whose library launches `warm_up` measures one by one; above, the graphs' buckets."""


_FORMS = {
    Algorithm.TWO_LAUNCH: "two Triton launches (gate and up products with the gate applied to "
    "float32 sums, then down)",
    Algorithm.FUSED_GATE_UP: "Triton's gate_up and the library's down",
    Algorithm.LIBRARY: "the library's products around the fused gate, which rounds gate and up",
    Algorithm.TEXTBOOK: "one Triton launch, which computes gate and up many times over",
}


class _Key(NamedTuple):
    """What a library chooses its kernels by."""

    plan: Plan
    shape: MlpShape
    dtype: DType
    device: torch.device
    rows: int


_measured: dict[_Key, tuple[KernelTraffic, ...]] = {}
"""Launches of plans with a library's products, shared by all layers and models of a shape."""


class FusedMlp:
    """The launches of each row count's plan; any M, H and I."""

    backend = "fused"

    def __init__(
        self,
        weights: MlpWeights,
        ledger: Ledger,
        max_rows: int,
        *,
        deterministic: bool = False,
        table: PlanTable | None = None,
    ) -> None:
        """Compute with `weights` on their GPU; see `plans_for` for the mode and the table."""
        self._weights = weights
        self._ledger = ledger
        self._max_rows = max_rows
        self._launcher = Launcher(weights)
        self._deterministic = deterministic
        self._device = profile_of(weights.device)
        self._plans = plans_for(
            weights.shape, weights.dtype, self._device, deterministic=deterministic, table=table
        )

    @property
    def description(self) -> str:
        """One sentence: what runs."""
        rows = self._plans.representatives(self._max_rows)
        kinds = dict.fromkeys(self._plans.at(count).algorithm for count in rows)
        form = f"fused: {'; or by rows '.join(_FORMS[kind] for kind in kinds)}"
        return (
            f"{form}; deterministic: sums in one order for all rows"
            if self._deterministic
            else form
        )

    @property
    def graph_buckets(self) -> tuple[int, ...]:
        """See `Mlp`."""
        weights = self._weights
        return graph_buckets(
            self._max_rows, weights.shape, weights.dtype, self._device, self._plans
        )

    def padded_rows(self, rows: int) -> int:
        """No padding: row tails are masked."""
        return rows

    def warm_up(self) -> None:
        """Compile every variant that 1..max_rows rows can need."""
        like = self._weights.down
        counts = {*self._plans.representatives(self._max_rows), *self._library_counts()}
        x = torch.zeros(self._max_rows, like.shape[0], dtype=like.dtype, device=like.device)
        out = torch.empty_like(x)
        for rows in sorted(counts):
            self._launch(x[:rows], out[:rows])
            self._launches(x[:rows], out[:rows])

    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """Run the plan of this row count; see `Mlp`."""
        rows = check_call(x, out, self._weights, self._max_rows)
        if rows == 0:
            return
        run_aligned(x, out, self._launch)
        for launch in self._launches(x, out):
            self._ledger.count(launch)

    def _library_counts(self) -> set[int]:
        """Row counts at which a library's kernels are still to be counted before they are needed."""
        counts = {*range(1, min(self._max_rows, _EVERY_COUNT_UP_TO) + 1), *self.graph_buckets}
        return {
            rows
            for rows in counts
            if not self._plans.at(rows).algorithm.is_ours and self._key(rows) not in _measured
        }

    def _key(self, rows: int) -> _Key:
        weights = self._weights
        return _Key(self._plans.at(rows), weights.shape, weights.dtype, weights.device, rows)

    def _launches(self, x: torch.Tensor, out: torch.Tensor) -> tuple[KernelTraffic, ...]:
        """What a call that has just run was; where a library is in it, found by a capture, once."""
        weights, rows = self._weights, x.shape[0]
        plan = self._plans.at(rows)
        planned = plan_traffic(plan, weights.shape, rows, weights.dtype.itemsize)
        if plan.algorithm.is_ours:
            return planned
        key = self._key(rows)
        if key not in _measured:
            if torch.cuda.is_current_stream_capturing():
                # Cannot capture inside a capture; the graph's own node count checks these.
                return planned
            with torch.cuda.device(weights.device):
                with torch.cuda.stream(capture_stream(torch.cuda.current_device())):
                    self._launcher.prepare_capture()
                names = captured_kernels(lambda: run_aligned(x, out, self._launch))
            _measured[key] = with_helpers(planned, names)
        return _measured[key]

    def _launch(self, x: torch.Tensor, out: torch.Tensor) -> None:
        plan = self._plans.at(x.shape[0])
        if torch.cuda.current_device() == x.device.index:
            self._launcher.run(plan, x, out)
        else:
            # Triton launches on the current device whatever device its tensors are on.
            with torch.cuda.device(x.device):
                self._launcher.run(plan, x, out)
