"""Whether a tile can run on a device, and how it is cut until it can."""

from dataclasses import replace

from gatefuse_kernels.plan.algorithm import Overlap, Plan
from gatefuse_kernels.plan.device import DeviceProfile
from gatefuse_kernels.shapes import DType, MlpShape
from gatefuse_kernels.tile import Tile

GATE_UP_PRODUCTS, DOWN_PRODUCTS = 2, 1

_WITH_WGMMA = (9, 0)
"""Capability with the products of Hopper's warpgroups; no other has them."""

_VECTOR_BYTES = 16
_HIDDEN_BY = 3
"""Stages: with fewer the loads are no longer hidden behind the products."""
_LEAST_INNER = 16


def is_vectorised(width: int, dtype: DType) -> bool:
    """Whether each row of a `[.., width]` matrix starts on a 128-bit boundary."""
    return width * dtype.itemsize % _VECTOR_BYTES == 0


def is_aligned(shape: MlpShape, dtype: DType) -> bool:
    """Whether both widths are vectorised."""
    return is_vectorised(shape.hidden, dtype) and is_vectorised(shape.intermediate, dtype)


def fits(plan: Plan, dtype: DType, device: DeviceProfile) -> bool:
    """Whether every tile of the plan can be launched on the device."""
    if plan.overlap is not Overlap.NONE and device.capability < (9, 0):
        return False
    return all(
        tile is None or tile_fits(tile, products, dtype, device)
        for tile, products in ((plan.gate_up, GATE_UP_PRODUCTS), (plan.down, DOWN_PRODUCTS))
    )


def tile_fits(tile: Tile, products: int, dtype: DType, device: DeviceProfile) -> bool:
    """Whether one program fits a multiprocessor's shared memory, and has its instructions."""
    if tile.descriptors and (device.capability < (9, 0) or dtype is DType.FP32):
        return False
    if tile.specialized and device.capability != _WITH_WGMMA:
        return False
    return tile.shared_bytes(products, dtype.itemsize) <= device.shared_bytes_per_block


def fitted(tile: Tile, products: int, dtype: DType, device: DeviceProfile) -> Tile:
    """The tile with its pipeline cut to the device's shared memory.

    Fewer stages first; where too few are left, half the inner length and twice the stages.

    Raises:
        ValueError: no cut makes it fit.
    """
    while True:
        for stages in range(tile.stages, min(tile.stages, _HIDDEN_BY) - 1, -1):
            cut = replace(tile, stages=stages)
            if tile_fits(cut, products, dtype, device):
                return cut
        if tile.inner <= _LEAST_INNER:
            raise ValueError(f"no pipeline of {tile} fits {device.name}")
        tile = replace(tile, inner=tile.inner // 2, stages=2 * tile.stages)
