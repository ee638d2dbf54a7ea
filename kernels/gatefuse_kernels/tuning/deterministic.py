"""The plans of the deterministic mode, of what was timed for each class of row counts. No torch.

All of them must add up in one order, so the order of down's sums is chosen first: whole, or that of
whatever is the fastest somewhere. How far behind is each of these where another is faster? The one
whose worst loss is the least is taken, and then the fastest tiles of each class among those that add
up so. What is chosen has its bits compared on the device.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from gatefuse_kernels.plan import Algorithm, Overlap, Plan, RowPlans, Tile
from gatefuse_kernels.plan.rules import DETERMINISTIC_ROWS
from gatefuse_kernels.plan.summation import (
    Order,
    add_alike,
    adds_alike_at_any_rows,
    order_of,
)
from gatefuse_kernels.shapes import MAX_ROWS, MlpShape
from gatefuse_kernels.tuning.stopwatch import LOOKED_AT_CLOSELY, Launch, Stopwatch, Timed


@dataclass(frozen=True, slots=True)
class ClassTimes:
    """What was timed at the largest row count of one class, in no order.

    Attributes:
        gate_ups: tiles of the first launch.
        downs: tiles of the second.
    """

    gate_ups: list[Timed]
    downs: list[Timed]


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

    def run(self, classes: Mapping[int, ClassTimes], before: RowPlans, goes_on: bool) -> RowPlans:
        """Plans for every row count.

        Args:
            classes: by their largest row count, ascending.
            before: what the device has without this search.
            goes_on: the last class's plan is for all larger row counts, too; otherwise that of
                `before` is, where it adds up alike.

        Returns:
            `before`, where there is nothing to choose from.
        """
        gate_ups, downs = self._gate_ups(classes), self._downs(classes)
        if len(gate_ups) < len(classes) or not downs:
            self.say("deterministic: at some row counts no tile can be used")
            return before
        timed = [self._fastest(rows, gate_ups[rows], downs[rows]) for rows in classes]
        told = ", ".join(f"{us:.1f}" for us, _ in timed)
        self.say(f"deterministic: {told} µs at {', '.join(map(str, classes))} rows")
        own = RowPlans((*list(classes)[:-1], MAX_ROWS), tuple(plan for _, plan in timed))
        for plans in (own,) if goes_on else self._with_more(own, max(classes), before):
            if self._have_the_same_bits(plans):
                return plans
        return RowPlans.of_one(own.at(DETERMINISTIC_ROWS))

    def _gate_ups(self, classes: Mapping[int, ClassTimes]) -> dict[int, Tile]:
        """The fastest tile of each class that has one; the sums are whole whatever the tile."""
        found = {}
        for rows, times in classes.items():
            tiles = _fastest_first(times.gate_ups)[:LOOKED_AT_CLOSELY]
            if tiles and (timed := self.stopwatch.tiles(Launch.GATE_UP, rows, tiles)):
                found[rows] = timed[0].tile
        return found

    def _downs(self, classes: Mapping[int, ClassTimes]) -> dict[int, Tile]:
        """The tile of each class, all of the order whose worst loss is the least; else none."""
        fastest = (_fastest_first(times.downs)[:1] for times in classes.values())
        whole = (self.shape.intermediate,)
        orders = list(
            dict.fromkeys([whole, *(self._order(tile) for tiles in fastest for tile in tiles)])
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
        """The fastest tile of each order, all timed in one run."""
        most = max(1, LOOKED_AT_CLOSELY // len(orders))
        tiles = dict.fromkeys(
            tile for order in orders for tile in self._of_order(times, order)[:most]
        )
        timed = self.stopwatch.tiles(Launch.DOWN, rows, list(tiles)) if tiles else []
        best: dict[Order, Timed] = {}
        for each in timed:
            best.setdefault(self._order(each.tile), each)
        return best

    def _of_order(self, times: ClassTimes, order: Order) -> list[Tile]:
        """The fastest tiles of an order; where none was timed, the fastest of all, cut like it."""
        tiles = _fastest_first(times.downs)
        cut = dict.fromkeys(replace(tile, splits=len(order)) for tile in tiles)
        for several in (tiles, cut):
            found = [tile for tile in several if self._order(tile) == order]
            if found:
                return found
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
        counted = "one row" if rows == 1 else f"{rows} rows"
        return us, replace(plan, reason=f"deterministic: {parts}; {us:.1f} µs at {counted}")

    def _with_more(self, own: RowPlans, last: int, before: RowPlans) -> Iterator[RowPlans]:
        """The plans with those that there were for more rows, if they add up alike; else without."""
        more = list(before.beyond(last))
        plans = (*own.plans, *(plan for _, plan in more))
        if add_alike(plans, self.shape):
            yield RowPlans((*own.limits[:-1], last, *(limit for limit, _ in more)), plans)
        yield own

    def _have_the_same_bits(self, plans: RowPlans) -> bool:
        """Whether tiles that should add up alike do so on this very device."""
        gate_ups, downs = zip(*(plan.tiles for plan in plans.plans), strict=True)
        for launch, tiles in ((Launch.GATE_UP, gate_ups), (Launch.DOWN, downs)):
            if not self.stopwatch.same_bits(launch, list(dict.fromkeys(tiles))):
                self.say(f"deterministic: tiles of {launch} that should add up alike do not")
                return False
        return True


def _fastest_first(timed: Iterable[Timed]) -> list[Tile]:
    """Tiles whose sums have the same order at any row count."""
    alike = (each for each in timed if adds_alike_at_any_rows(each.tile))
    return [each.tile for each in sorted(alike, key=lambda each: each.us)]
