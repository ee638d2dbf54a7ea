"""The plans of the deterministic mode, of what was timed for each class of row counts. No torch.

All of them must add up in one order, so the order is chosen first: for each that is the fastest
somewhere, how far behind is it where another is faster? The one whose worst loss is the least is
taken, and then the fastest tiles of each class among those that add up so.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from gatefuse_kernels.plan import Algorithm, Overlap, Plan, RowPlans, Tile
from gatefuse_kernels.plan.rules import DETERMINISTIC_ROWS
from gatefuse_kernels.plan.summation import Order, add_alike, order_of
from gatefuse_kernels.shapes import MAX_ROWS, MlpShape
from gatefuse_kernels.tuning.candidates import LaunchSize
from gatefuse_kernels.tuning.stopwatch import Launch, Stopwatch, Timed

_BEST = 3
"""Tiles of each order that are timed beside those of the others."""


@dataclass(frozen=True, slots=True)
class ClassTimes:
    """What was timed at the largest row count of one class, the fastest first.

    Attributes:
        gate_ups: tiles of the first launch.
        downs: tiles of the second.
        down: the second launch's size.
    """

    gate_ups: list[Timed]
    downs: list[Timed]
    down: LaunchSize


@dataclass(frozen=True, slots=True)
class DeterministicSearch:
    """One MLP on one device.

    Attributes:
        shape: its widths.
        overlaps: what the device can do.
        stopwatch: measures on it.
        say: told of what was found.
    """

    shape: MlpShape
    overlaps: tuple[Overlap, ...]
    stopwatch: Stopwatch
    say: Callable[[str], None]

    def run(self, classes: Mapping[int, ClassTimes], rest: RowPlans, goes_on: bool) -> RowPlans:
        """Plans for every row count.

        Args:
            classes: by their largest row count, ascending.
            rest: what the device has without this search.
            goes_on: the last class's plan is for all larger row counts, too; otherwise `rest` is,
                where it adds up alike.

        Returns:
            `rest`, where there is nothing to choose from.
        """
        sums = {rows: _without_streams(times) for rows, times in classes.items()}
        downs = self._downs(sums)
        if not downs or not all(times.gate_ups for times in sums.values()):
            self.say("deterministic: no tiles that add up in one order at every row count")
            return rest
        timed = [
            self._fastest(rows, sums[rows].gate_ups[0].tile, down) for rows, down in downs.items()
        ]
        plans = [plan for _, plan in timed]
        told = ", ".join(f"{us:.1f}" for us, _ in timed)
        self.say(f"deterministic: {told} µs at {', '.join(map(str, downs))} rows")
        if not self._have_the_same_bits(plans):
            few = [
                plan for rows, plan in zip(downs, plans, strict=True) if rows <= DETERMINISTIC_ROWS
            ]
            return RowPlans.of_one(few[-1] if few else plans[0])
        return self._for_all_rows(list(downs), plans, rest, goes_on)

    def _downs(self, classes: Mapping[int, ClassTimes]) -> dict[int, Tile]:
        """The tile of each class, all of the order whose worst loss is the least; else none."""
        orders = list(
            dict.fromkeys(
                self._order(times.downs[0].tile) for times in classes.values() if times.downs
            )
        )
        best = {rows: self._best_of_each(rows, times, orders) for rows, times in classes.items()}

        def worst_loss(order: Order) -> float:
            return max(
                found[order].us / min(each.us for each in found.values()) for found in best.values()
            )

        everywhere = [order for order in orders if all(order in found for found in best.values())]
        if not everywhere:
            return {}
        chosen = min(everywhere, key=worst_loss)
        return {rows: found[chosen].tile for rows, found in best.items()}

    def _best_of_each(
        self, rows: int, times: ClassTimes, orders: list[Order]
    ) -> dict[Order, Timed]:
        """The fastest tile of each order, timed in one run."""
        tiles = dict.fromkeys(tile for order in orders for tile in self._of_order(times, order))
        best: dict[Order, Timed] = {}
        for timed in self.stopwatch.tiles(Launch.DOWN, rows, list(tiles)):
            best.setdefault(self._order(timed.tile), timed)
        return best

    def _of_order(self, times: ClassTimes, order: Order) -> list[Tile]:
        """The fastest tiles of an order; where none was timed, the fastest of all, cut like it."""
        tiles = [timed.tile for timed in times.downs]
        cut = (replace(tile, splits=len(order)) for tile in tiles)
        fitting = [tile for tile in cut if times.down.fits(tile)]
        for some in (tiles, fitting):
            found = [tile for tile in some if self._order(tile) == order]
            if found:
                return list(dict.fromkeys(found))[:_BEST]
        return []

    def _order(self, tile: Tile) -> Order:
        return order_of(tile, self.shape.intermediate)

    def _fastest(self, rows: int, gate_up: Tile, down: Tile) -> tuple[float, Plan]:
        """With the best start of down, which changes nothing in what it adds."""
        plans = [
            Plan(Algorithm.TWO_LAUNCH, gate_up, down, "deterministic", overlap)
            for overlap in self.overlaps
        ]
        timed = zip(self.stopwatch.plans(rows, plans), plans, strict=True)
        us, plan = min(timed, key=lambda pair: pair[0])
        parts = "whole sums" if down.splits == 1 else f"down in {down.splits} parts"
        return us, replace(plan, reason=f"deterministic: {parts}; {us:.1f} µs at {rows} rows")

    def _have_the_same_bits(self, plans: list[Plan]) -> bool:
        """Whether tiles that should add up alike do so on this very device."""
        gate_ups, downs = zip(*(plan.tiles for plan in plans), strict=True)
        for launch, tiles in ((Launch.GATE_UP, gate_ups), (Launch.DOWN, downs)):
            if not self.stopwatch.same_bits(launch, list(dict.fromkeys(tiles))):
                self.say(
                    f"deterministic: the bits of {launch} depend on the tile: one for all rows"
                )
                return False
        return True

    def _for_all_rows(
        self, limits: list[int], plans: list[Plan], rest: RowPlans, goes_on: bool
    ) -> RowPlans:
        more = [pair for pair in zip(rest.limits, rest.plans, strict=True) if pair[0] > limits[-1]]
        if goes_on or not add_alike((*plans, *(plan for _, plan in more)), self.shape):
            return RowPlans((*limits[:-1], MAX_ROWS), tuple(plans))
        for limit, plan in more:
            limits, plans = [*limits, limit], [*plans, plan]
        return RowPlans(tuple(limits), tuple(plans))


def _without_streams(times: ClassTimes) -> ClassTimes:
    """Only tiles that the matrix units add up, and in an order that the row count does not change."""
    return replace(times, gate_ups=_steady(times.gate_ups), downs=_steady(times.downs))


def _steady(timed: Iterable[Timed]) -> list[Timed]:
    return [each for each in timed if not (each.tile.is_streamed or each.tile.share_tail)]
