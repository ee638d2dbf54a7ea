"""Runs plans: the one place that knows which kernels an algorithm and a tile stand for."""

import torch

from gatefuse_kernels.device_profile import profile_of
from gatefuse_kernels.packed import MlpWeights
from gatefuse_kernels.plan import Algorithm, DeviceProfile, Overlap, Plan, Tile
from gatefuse_kernels.swiglu.alignment import starts_on_16_bytes
from gatefuse_kernels.swiglu.descriptors import WeightDescriptors
from gatefuse_kernels.swiglu.down import launch_down
from gatefuse_kernels.swiglu.down_tma import launch_down_tma
from gatefuse_kernels.swiglu.gate import launch_gate
from gatefuse_kernels.swiglu.gate_up import launch_gate_up
from gatefuse_kernels.swiglu.gate_up_tma import launch_gate_up_tma
from gatefuse_kernels.swiglu.split_sum import SplitWorkspace
from gatefuse_kernels.swiglu.streamed import launch_down_streamed, launch_gate_up_streamed
from gatefuse_kernels.swiglu.textbook import launch_textbook


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
        self._multiprocessors = (device or profile_of(weights.device)).multiprocessors
        self._descriptors = WeightDescriptors(weights)
        self._workspace = SplitWorkspace()

    def run(self, plan: Plan, x: torch.Tensor, out: torch.Tensor) -> None:
        """Compute `out = MLP(x)`, both `[M, H]`, by any plan."""
        weights = self._weights
        if plan.algorithm is Algorithm.TEXTBOOK and plan.down is not None:
            launch_textbook(x, weights, out, plan.down)
            return
        h = torch.empty(x.shape[0], weights.shape.intermediate, dtype=x.dtype, device=x.device)
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
        if tile.descriptors:
            launch_gate_up_tma(
                x, self._weights, self._descriptors, h, tile, overlap, self._multiprocessors
            )
        elif tile.is_streamed:
            launch_gate_up_streamed(x, self._weights, h, tile, overlap)
        else:
            launch_gate_up(x, self._weights, h, tile, overlap)

    def down(
        self, h: torch.Tensor, out: torch.Tensor, tile: Tile, overlap: Overlap = Overlap.NONE
    ) -> None:
        """Compute out `[M, H]` of h `[M, I]`."""
        if tile.descriptors:
            launch_down_tma(h, self._descriptors, out, tile, overlap, self._workspace)
        elif tile.is_streamed:
            launch_down_streamed(h, self._weights, out, tile, overlap)
        else:
            launch_down(h, self._weights, out, tile, overlap, self._workspace)


def _on_16_bytes(weights: MlpWeights) -> MlpWeights:
    gate_up, down = weights.gate_up, weights.down
    if starts_on_16_bytes(gate_up) and starts_on_16_bytes(down):
        return weights
    return MlpWeights(gate_up.clone(), down.clone(), weights.activation)
