"""In what order a launch adds up: with the row and the weights all that a row's bits depend on.

Our kernels add an element's products in ascending order of the contracted width into one float32 sum,
whatever the tile: on an H200, in bf16, tiles of 16 to 128 rows, swapped or not, through pointers or the
copy engine, gave one answer (`2026-11-30-h200-summation-order.txt`). A sum in parts has other bits,
those of where it is cut. So tiles may differ by row count, and a row's bits do not, as long as their
sums are cut at the same places. `gatefuse tune` compares the bits of what it chooses.
"""

from collections.abc import Iterable

from gatefuse_kernels.plan.algorithm import Algorithm, Plan
from gatefuse_kernels.plan.row_plans import RowPlans
from gatefuse_kernels.shapes import MlpShape
from gatefuse_kernels.tile import Tile

Order = tuple[int, ...]
"""Where the parts of a sum end, the last at the contracted width."""


def order_of(tile: Tile, inner: int) -> Order:
    """How a launch with this tile adds up.

    Args:
        tile: one for which `adds_alike_at_any_rows`.
        inner: the contracted width.
    """
    # Through descriptors the last step may reach past the edge; through pointers the tail is the
    # last part's, beside its steps.
    steps = -(-inner // tile.inner) if tile.descriptors else inner // tile.inner
    stretch = -(-steps // tile.splits) * tile.inner
    stepped = min(steps * tile.inner, inner)
    return (*(min(stretch * part, stepped) for part in range(1, tile.splits)), inner)


def adds_alike_at_any_rows(tile: Tile) -> bool:
    """Whether a sum's order is `order_of`, at every row count.

    Streamed tiles add up per lane and then across lanes; where a tile that is shared out is cut
    depends on how many there are.
    """
    return not (tile.is_streamed or tile.share_tail)


def add_alike(plans: Iterable[Plan], shape: MlpShape) -> bool:
    """Whether a row has the same bits under all of these plans, which are of two launches."""
    return len({_orders(plan, shape) for plan in plans}) == 1


def check_deterministic(plans: RowPlans, shape: MlpShape) -> None:
    """Raise ValueError unless a row's sums cannot depend on the other rows.

    Two launches of our own kernels: the library picks a kernel by the row count. And one order of
    adding up for all row counts.
    """
    first = plans.plans[0]
    for limit, plan in zip(plans.limits, plans.plans, strict=True):
        if plan.algorithm is not Algorithm.TWO_LAUNCH:
            raise ValueError(f"a deterministic plan is a two_launch plan, not {plan.algorithm}")
        if not all(map(adds_alike_at_any_rows, plan.tiles)):
            raise ValueError("a deterministic plan has no tiles that are streamed or shared out")
        if _orders(plan, shape) != _orders(first, shape):
            raise ValueError(
                f"deterministic plans add up in one order, but that up to {limit} rows ends its sums "
                f"at {_orders(plan, shape)}, and the first at {_orders(first, shape)}"
            )


def _orders(plan: Plan, shape: MlpShape) -> tuple[Order, Order]:
    gate_up, down = plan.tiles
    return order_of(gate_up, shape.hidden), order_of(down, shape.intermediate)
