"""How long a plan should take: the larger of its bytes and its arithmetic, launch by launch.

    time(M) = sum over launches of max(bytes(M) / bandwidth, flops(M') / rate) + launch

M' is M rounded up to whole row tiles, for a program multiplies its masked rows, too. The peaks are
the datasheet's. They cancel where two row counts of one plan are compared, which is what the model
is for: it knows nothing of waves of programs, of caches, or of how near to a peak a kernel comes.
"""

from gatefuse_kernels.plan.algorithm import Algorithm, Plan
from gatefuse_kernels.plan.device import DeviceProfile
from gatefuse_kernels.plan.plan_traffic import plan_traffic
from gatefuse_kernels.shapes import DType, MlpShape
from gatefuse_kernels.tile import Tile
from gatefuse_kernels.traffic import KernelTraffic

LIBRARY_ROWS = 64
"""Taken for a library's row tile, of which nothing is known: with a larger one padding costs less."""

LAUNCH_S = 1.2e-6
"""An empty launch in a CUDA graph on an H200, measured 2026-11-29."""


def launch_s(
    launch: KernelTraffic, bandwidth_bytes_per_s: float, flops_per_s: float, padding: float = 1.0
) -> float:
    """Seconds of one launch: the larger of its bytes and its arithmetic, and what a launch costs.

    Args:
        launch: what it moves and computes.
        bandwidth_bytes_per_s: of device memory.
        flops_per_s: of its kind of arithmetic.
        padding: by how much masked rows multiply the arithmetic.
    """
    arithmetic_s = launch.flops * padding / flops_per_s
    return max(launch.bytes_moved / bandwidth_bytes_per_s, arithmetic_s) + LAUNCH_S


def predicted_s(
    plan: Plan, shape: MlpShape, rows: int, dtype: DType, device: DeviceProfile
) -> float:
    """Seconds of one MLP with `rows` >= 1 rows under `plan`."""
    launches = plan_traffic(plan, shape, rows, dtype.itemsize)
    return sum(
        launch_s(launch, device.bandwidth_bytes_per_s, device.flops(dtype), padding)
        for launch, padding in zip(launches, paddings(plan, rows), strict=True)
    )


def paddings(plan: Plan, rows: int) -> tuple[float, ...]:
    """By how much each launch's row tiles, rounded up, multiply its arithmetic."""
    return tuple(_whole_tiles(rows, tile) / rows for tile in _tiles(plan))


def _tiles(plan: Plan) -> tuple[Tile | None, ...]:
    """The tile of each launch; a library's are its own."""
    if plan.algorithm is Algorithm.LIBRARY:
        return None, None, None
    if plan.algorithm is Algorithm.TEXTBOOK:
        return (plan.down,)
    return plan.gate_up, plan.down


def _whole_tiles(rows: int, tile: Tile | None) -> int:
    tile_rows = LIBRARY_ROWS if tile is None else tile.rows
    return -(-rows // tile_rows) * tile_rows
