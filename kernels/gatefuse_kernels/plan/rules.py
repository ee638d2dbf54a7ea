"""Plans for shapes and devices that nobody measured.

A launch wants a program for most of the multiprocessors: of a class's tiles, from wide to narrow,
the first that gives three quarters of them work is taken, its pipeline cut to the shared memory.
Where arithmetic takes the time a library's products are hard to beat, but the library rounds gate and
up on their way through memory, half as much error again: no rule takes it. `gatefuse tune` finds the
tiles that hold their own there.
"""

from collections.abc import Iterator

from gatefuse_kernels.plan.algorithm import Algorithm, Plan
from gatefuse_kernels.plan.device import DeviceProfile
from gatefuse_kernels.plan.fitting import fitted, is_aligned, is_vectorised
from gatefuse_kernels.plan.row_plans import RowPlans
from gatefuse_kernels.plan.rule_tiles import UNALIGNED, LaunchTiles, tiles_for
from gatefuse_kernels.shapes import DType, MlpShape
from gatefuse_kernels.tile import Tile

_BUSY = 0.75
"""Share of the multiprocessors that a launch should have a program for."""

DETERMINISTIC_ROWS = 64
"""Where one plan for all row counts should be fast."""


def plans_by_rule(shape: MlpShape, dtype: DType, device: DeviceProfile) -> RowPlans:
    """The plans of an MLP that was measured nowhere: two launches for every row count."""
    crossover = device.crossover_rows(dtype)
    limits = sorted({crossover, *_limits(dtype, device)})
    return RowPlans(
        tuple(limits), tuple(two_launch_by_rule(shape, limit, dtype, device) for limit in limits)
    )


def two_launch_by_rule(shape: MlpShape, rows: int, dtype: DType, device: DeviceProfile) -> Plan:
    """The plan of one row count of an MLP that was measured nowhere."""
    return _two_launch(shape, rows, dtype, device, _reason(shape, rows, dtype, device))


def deterministic_by_rule(shape: MlpShape, dtype: DType, device: DeviceProfile) -> RowPlans:
    """One plan for every row count of an MLP that was measured nowhere.

    The tiles of 64 rows: a single row takes hardly longer than with smaller ones, for the weights'
    bytes take the time, and many rows have tiles of some size.
    """
    rows = DETERMINISTIC_ROWS
    if is_aligned(shape, dtype):
        reason = f"deterministic: the tiles of {rows} rows for every row count"
    else:
        reason = f"deterministic: {_odd(shape, dtype)}"
    return RowPlans.of_one(_two_launch(shape, rows, dtype, device, reason))


def down_by_rule(shape: MlpShape, rows: int, dtype: DType, device: DeviceProfile) -> Tile:
    """The tile of down alone."""
    _, down = tiles_for(dtype, device)
    tile = _pick(down, rows, shape.hidden, device)
    return _legal(tile, down.products, shape.intermediate, dtype, device)


def tiles_by_rule(dtype: DType, device: DeviceProfile) -> Iterator[Plan]:
    """Every tile that the rules can give where rows start on 16 bytes, paired by class."""
    gate_up, down = tiles_for(dtype, device)
    for limit in _limits(dtype, device):
        for up in gate_up.at(limit):
            for out in down.at(limit):
                yield Plan(
                    Algorithm.TWO_LAUNCH,
                    fitted(up, gate_up.products, dtype, device),
                    fitted(out, down.products, dtype, device),
                    "by rule",
                )


def _limits(dtype: DType, device: DeviceProfile) -> list[int]:
    """The classes in which either launch's tiles change."""
    return sorted({limit for launch in tiles_for(dtype, device) for limit, _ in launch.classes})


def _reason(shape: MlpShape, rows: int, dtype: DType, device: DeviceProfile) -> str:
    """Why the rules have nothing better."""
    if not is_aligned(shape, dtype):
        return _odd(shape, dtype)
    crossover = device.crossover_rows(dtype)
    if rows <= crossover:
        return "not measured here: tiles by shared memory and processors"
    return (
        f"not measured here, and bound by arithmetic above {crossover} rows: tiles by shared memory "
        "and processors; `gatefuse tune` measures"
    )


def _odd(shape: MlpShape, dtype: DType) -> str:
    """Of widths for which there is nothing to measure."""
    widths = {"hidden": shape.hidden, "intermediate": shape.intermediate}
    odd = " and ".join(
        f"{name} {width}" for name, width in widths.items() if not is_vectorised(width, dtype)
    )
    return f"rows of {odd} {dtype} do not start on 16 bytes: the one tile that loads by element"


def _two_launch(
    shape: MlpShape, rows: int, dtype: DType, device: DeviceProfile, reason: str
) -> Plan:
    gate_up, _ = tiles_for(dtype, device)
    up = _pick(gate_up, rows, shape.intermediate, device)
    return Plan(
        Algorithm.TWO_LAUNCH,
        _legal(up, gate_up.products, shape.hidden, dtype, device),
        down_by_rule(shape, rows, dtype, device),
        reason,
    )


def _pick(launch: LaunchTiles, rows: int, columns: int, device: DeviceProfile) -> Tile:
    wanted = _BUSY * device.multiprocessors
    tiles = launch.at(rows)
    return next((tile for tile in tiles if tile.programs(rows, columns) >= wanted), tiles[-1])


def _legal(tile: Tile, products: int, inner: int, dtype: DType, device: DeviceProfile) -> Tile:
    return fitted(tile, products, dtype, device) if is_vectorised(inner, dtype) else UNALIGNED
