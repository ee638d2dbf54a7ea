"""In what order a launch adds up: with the row and the weights all that a row's bits depend on.

The matrix units add products in ascending order of the contracted dimension, sixteen at a time, into
one float32 sum for each element of the result, whatever the tile: on an H200 50 tiles, swapped or
not, through pointers or the copy engine, by instructions of a warp or of a warpgroup, gave one
answer. A sum in parts has other bits, those of where it is cut. So tiles may differ by row count,
and a row's bits do not, as long as their sums are cut at the same places.
"""

from collections.abc import Iterable

from gatefuse_kernels.plan.algorithm import Algorithm, Plan
from gatefuse_kernels.plan.row_plans import RowPlans
from gatefuse_kernels.shapes import MlpShape
from gatefuse_kernels.tile import Tile

Order = tuple[int | Tile, ...]
"""Where the parts of a sum end; of a tile without matrix units the tile, which adds like no other."""


def order_of(tile: Tile, inner: int) -> Order:
    """How a launch with this tile adds up.

    Args:
        tile: that is not shared out: where it is cut would depend on the row count.
        inner: the contracted width.
    """
    if tile.is_streamed:
        return (tile,)
    # Through descriptors the last step may reach past the edge; through pointers the tail is the
    # last part's, beside its steps.
    steps = -(-inner // tile.inner) if tile.descriptors else inner // tile.inner
    stretch = -(-steps // tile.splits) * tile.inner
    whole = min(steps * tile.inner, inner)
    return (*(min(stretch * part, whole) for part in range(1, tile.splits)), inner)


def add_alike(plans: Iterable[Plan], shape: MlpShape) -> bool:
    """Whether a row has the same bits under all of these two-launch plans."""
    orders = {
        (order_of(gate_up, shape.hidden), order_of(down, shape.intermediate))
        for gate_up, down in (plan.tiles for plan in plans)
    }
    return len(orders) == 1


def check_deterministic(plans: RowPlans, shape: MlpShape) -> None:
    """Raise ValueError unless a row's sums cannot depend on the other rows.

    Two launches of our own kernels: the library picks a kernel by the row count. And one order of
    adding up for all row counts.
    """
    for plan in plans.plans:
        if plan.algorithm is not Algorithm.TWO_LAUNCH:
            raise ValueError(f"a deterministic plan is a two_launch plan, not {plan.algorithm}")
        if any(tile.share_tail for tile in plan.tiles):
            raise ValueError("a deterministic plan shares out no tiles")
    if not add_alike(plans.plans, shape):
        raise ValueError("deterministic plans add up in one order, and these in several")
