"""Runs plans: the one place that knows which kernels an algorithm and a tile stand for."""

from typing import Protocol

import torch

from gatefuse_kernels.device_profile import profile_of
from gatefuse_kernels.plan import Algorithm, DeviceProfile, Overlap, Plan, Tile
from gatefuse_kernels.swiglu.alignment import starts_on_16_bytes
from gatefuse_kernels.swiglu.down import Down
from gatefuse_kernels.swiglu.down_tma import DownTma
from gatefuse_kernels.swiglu.gate import launch_gate
from gatefuse_kernels.swiglu.gate_up import GateUp
from gatefuse_kernels.swiglu.gate_up_specialized import GateUpSpecialized
from gatefuse_kernels.swiglu.gate_up_tma import GateUpTma
from gatefuse_kernels.swiglu.split_sum import SplitWorkspace
from gatefuse_kernels.swiglu.streamed import DownStreamed, GateUpStreamed
from gatefuse_kernels.swiglu.textbook import launch_textbook
from gatefuse_kernels.weights.packed import MlpWeights


class _Product(Protocol):
    """One launch: a product of a matrix with the MLP's weights."""

    def __call__(self, rows: torch.Tensor, product: torch.Tensor, /) -> None:
        """Compute `product` of `rows`."""


class Launcher:
    """Launches for one MLP's weights, on the current device and stream.

    Matrices are contiguous, of the weights' dtype and start on 16 bytes; M >= 1.
    """

    def __init__(self, weights: MlpWeights, device: DeviceProfile | None = None) -> None:
        """Launch nothing yet; weights that start elsewhere are copied to where 16 bytes do.

        `device` is what is launched for, where that is not the weights' own.
        """
        weights = _on_16_bytes(weights)
        self._weights = weights
        self._device = device or profile_of(weights.device)
        self._workspace = SplitWorkspace(weights.device)
        self._gate_ups: dict[tuple[Tile, Overlap], _Product] = {}
        self._downs: dict[tuple[Tile, Overlap], _Product] = {}

    def run(self, plan: Plan, x: torch.Tensor, out: torch.Tensor) -> None:
        """Compute `out = MLP(x)`, both `[M, H]`, by any plan."""
        weights = self._weights
        if plan.algorithm is Algorithm.TEXTBOOK and plan.down is not None:
            launch_textbook(x, weights, out, plan.down)
            return
        h = x.new_empty(x.shape[0], weights.shape.intermediate)
        if plan.gate_up is not None:
            self.gate_up(x, h, plan.gate_up, plan.overlap)
        else:
            gate, up = torch.mm(x, weights.gate_up.t()).chunk(2, dim=1)
            launch_gate(gate, up, h, weights.activation)
        if plan.down is not None:
            self.down(h, out, plan.down, plan.overlap)
        else:
            torch.mm(h, weights.down.t(), out=out)

    def gate_up(
        self, x: torch.Tensor, h: torch.Tensor, tile: Tile, overlap: Overlap = Overlap.NONE
    ) -> None:
        """Compute h `[M, I]` of x `[M, H]`."""
        key = tile, overlap
        launch = self._gate_ups.get(key)
        if launch is None:
            launch = self._gate_ups[key] = self._new_gate_up(tile, overlap)
        launch(x, h)

    def down(
        self, h: torch.Tensor, out: torch.Tensor, tile: Tile, overlap: Overlap = Overlap.NONE
    ) -> None:
        """Compute out `[M, H]` of h `[M, I]`."""
        key = tile, overlap
        launch = self._downs.get(key)
        if launch is None:
            launch = self._downs[key] = self._new_down(tile, overlap)
        launch(h, out)

    def prepare_capture(self) -> None:
        """Make ready to capture, on the current stream, what has run on another."""
        self._workspace.prepare_capture()

    def _new_gate_up(self, tile: Tile, overlap: Overlap) -> _Product:
        if tile.specialized:
            return GateUpSpecialized(self._weights, tile, overlap, self._device)
        if tile.descriptors:
            return GateUpTma(self._weights, tile, overlap, self._device, self._workspace)
        if tile.is_streamed:
            return GateUpStreamed(self._weights, tile, overlap)
        return GateUp(self._weights, tile, overlap)

    def _new_down(self, tile: Tile, overlap: Overlap) -> _Product:
        if tile.descriptors:
            return DownTma(self._weights, tile, overlap, self._workspace)
        if tile.is_streamed:
            return DownStreamed(self._weights, tile, overlap)
        return Down(self._weights, tile, overlap, self._workspace)


def _on_16_bytes(weights: MlpWeights) -> MlpWeights:
    gate_up, down = weights.gate_up, weights.down
    if starts_on_16_bytes(gate_up) and starts_on_16_bytes(down):
        return weights
    return MlpWeights(gate_up.clone(), down.clone(), weights.activation)
