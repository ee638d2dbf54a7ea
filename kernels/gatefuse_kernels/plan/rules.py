"""Plans for shapes and devices that nobody measured.

A launch wants a program for most of the multiprocessors: of a class's tiles, from wide to narrow,
the first that gives three quarters of them work is taken, its pipeline cut to the shared memory.
That is for the rows whose weights' bytes take the time. Where arithmetic does, a library's products
are hard to beat and fusing the gate saves little: what was measured on such a GPU decides, and where
nothing was, the library multiplies.
"""

from collections.abc import Iterator

from gatefuse_kernels.plan.algorithm import Algorithm, Plan
from gatefuse_kernels.plan.device import DeviceProfile
from gatefuse_kernels.plan.fitting import fitted, is_vectorised
from gatefuse_kernels.plan.row_plans import RowPlans
from gatefuse_kernels.plan.rule_tiles import UNALIGNED, LaunchTiles, tiles_for
from gatefuse_kernels.plan.table import Entry
from gatefuse_kernels.plan.tile import Tile
from gatefuse_kernels.shapes import MAX_ROWS, DType, MlpShape

_BUSY = 0.75
"""Share of the multiprocessors that a launch should have a program for."""

_DETERMINISTIC_ROWS = 64


def plans_by_rule(
    shape: MlpShape, dtype: DType, device: DeviceProfile, evidence: Entry | None
) -> RowPlans:
    """The plans of an MLP that was measured nowhere.

    Args:
        shape: its widths.
        dtype: element type.
        device: the GPU.
        evidence: what was measured for another shape on such a GPU. Without any, or if it says so
            there, the library multiplies far above the crossover.
    """
    crossover = device.crossover_rows(dtype)
    limits = _limits(dtype, device)
    few = (*(limit for limit in limits if limit < crossover), crossover)
    many = (*(limit for limit in limits if limit > crossover),)
    plans = [
        _two_launch(
            shape, limit, dtype, device, "not measured here: tiles by shared memory and processors"
        )
        for limit in few
    ]
    shown = evidence and evidence.row_plans().at(2 * crossover).algorithm
    if shown is None or shown is Algorithm.LIBRARY:
        return RowPlans((*few, MAX_ROWS), (*plans, library_by_rule(dtype, device)))
    reason = "not measured here: our kernels, which hold their own at the shapes that were measured"
    plans += [_two_launch(shape, limit, dtype, device, reason) for limit in many]
    return RowPlans((*few, *many), tuple(plans))


def library_by_rule(dtype: DType, device: DeviceProfile) -> Plan:
    """Not to fuse, where nobody measured that it pays."""
    return Plan(
        Algorithm.LIBRARY,
        None,
        None,
        f"more than {device.crossover_rows(dtype)} rows of {dtype} are bound by arithmetic on "
        f"{device.name}, and nobody measured that a tile beats the library's products there",
    )


def deterministic_by_rule(shape: MlpShape, dtype: DType, device: DeviceProfile) -> Plan:
    """The one plan for every row count of an MLP that was measured nowhere.

    The tiles of 64 rows: a single row takes hardly longer than with smaller ones, for the weights'
    bytes take the time, and many rows have tiles of some size.
    """
    reason = f"deterministic: the tiles of {_DETERMINISTIC_ROWS} rows for every row count"
    return _two_launch(shape, _DETERMINISTIC_ROWS, dtype, device, reason)


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
