"""Row counts worth a CUDA graph each: few enough to capture, close enough that padding is cheap."""

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import pairwise

from gatefuse_kernels.plan.cost import predicted_s
from gatefuse_kernels.plan.device import DeviceProfile
from gatefuse_kernels.plan.row_plans import RowPlans
from gatefuse_kernels.shapes import DType, MlpShape, check_max_rows

PADDING_COST = 1.05
"""A bucket takes at most this many times as long as any row count that it serves."""

_STEP = 16
"""No row tile is smaller."""

_FINE = 256
"""Steps of each doubling far up: 0.4 % and less, where a bucket spans 5 %."""

_KERNEL_CHANGES = (16, 32, 64, 128, 256)
"""Up to here time rises by some percent from class to class (4 % to 11 % on an H200 from 16 to 128
rows), which the model does not see: no bucket serves row counts on both sides."""


@lru_cache(maxsize=256)
def graph_buckets(
    max_rows: int, shape: MlpShape, dtype: DType, device: DeviceProfile, plans: RowPlans
) -> tuple[int, ...]:
    """The ascending row counts to capture for batches of 1..max_rows rows.

    By the model of `cost`, a bucket costs at most 5 % more than each row count that it pads. While
    the weights' bytes take the time, that is a bucket per class of the plan; where arithmetic does,
    every whole tile, and from twenty tiles on one for each 5 %. At usual widths on an H200 that is
    up to 8 for 256 rows and 64 for 8192; at most 16 and 100 for widths of 256 and more anywhere;
    then 14 for each doubling.

    Raises:
        ValueError: `max_rows` is out of range.
    """
    check_max_rows(max_rows)

    def seconds(rows: int) -> float:
        return predicted_s(plans.at(rows), shape, rows, dtype, device)

    changes = [
        limit
        for limit, (here, there) in zip(plans.limits, pairwise(plans.plans), strict=False)
        if here != there
    ]
    return buckets_by_time(max_rows, seconds, (*_KERNEL_CHANGES, *changes))


def buckets_by_time(
    max_rows: int, seconds: Callable[[int], float], edges: Iterable[int]
) -> tuple[int, ...]:
    """The fewest buckets of which none costs more than `PADDING_COST` or spans one of `edges`.

    Args:
        max_rows: the last bucket.
        seconds: time of a row count; between two steps (see `_steps`) it does not fall.
        edges: row counts after which another kernel runs; each below `max_rows` is a bucket.
    """
    fixed = {edge for edge in edges if edge < max_rows} | {max_rows}
    steps = sorted(fixed.union(_steps(max_rows)))
    buckets: list[int] = []
    cheapest = seconds(1)
    for here, there in pairwise(steps):
        # All that would be padded further: from the first row count behind the last bucket on.
        cheapest = min(cheapest, seconds(here + 1))
        if here in fixed or seconds(there) > PADDING_COST * cheapest:
            buckets.append(here)
            cheapest = seconds(here + 1)
    return (*buckets, max_rows)


def _steps(max_rows: int) -> Iterator[int]:
    """Where a bucket may end: every multiple of 16, and from 8192 rows on 256 counts a doubling."""
    rows = _STEP
    while rows < max_rows:
        yield rows
        rows += max(_STEP, (1 << (rows.bit_length() - 1)) // _FINE)
