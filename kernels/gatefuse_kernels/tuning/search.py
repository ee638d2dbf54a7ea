"""Which plan is the fastest for each class of row counts, given a stopwatch. No torch."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product

from gatefuse_kernels.plan import (
    Algorithm,
    DeviceProfile,
    Overlap,
    Plan,
    RowPlans,
    Tile,
    plans_for,
)
from gatefuse_kernels.plan.fitting import is_aligned
from gatefuse_kernels.plan.table import Entry, MeasuredClass, Measurement
from gatefuse_kernels.shapes import MAX_ROWS, DType, MlpShape
from gatefuse_kernels.tuning.candidates import (
    LaunchSize,
    candidates,
    down_size,
    gate_up_size,
    neighbours,
)
from gatefuse_kernels.tuning.stopwatch import Launch, Stopwatch, Timed

ROWS = (1, 2, 16, 32, 64, 128, 256, 512, 1024, 2048)
"""The largest row counts of the classes that are told apart."""

_FIXED_ROWS = (1, 16, 64)
"""Where the deterministic plan must hold its own."""

_BEST = 3
"""Tiles of a launch that go on to the next round."""

_LIBRARY = Plan(Algorithm.LIBRARY, None, None, "the alternative")


@dataclass(frozen=True, slots=True)
class Search:
    """One MLP on one device.

    Attributes:
        shape: its widths.
        dtype: element type.
        device: the GPU.
        stopwatch: measures on it.
        say: told of each step.
    """

    shape: MlpShape
    dtype: DType
    device: DeviceProfile
    stopwatch: Stopwatch
    say: Callable[[str], None]

    def run(
        self, row_counts: Sequence[int], measured: Measurement, keep: Callable[[Entry], None]
    ) -> None:
        """Measure each row count, and then the deterministic plan; `keep` gets all there is so far.

        What was not measured is filled in with the plans the device has without it, so that an
        entry is whole, and can be used, whenever the search is stopped.

        Args:
            row_counts: the largest of each class, ascending.
            measured: provenance.
            keep: called after each class.

        Raises:
            ValueError: the shape's rows do not start on 16 bytes.
            WrongAnswerError: a plan that was timed does not answer rightly.
        """
        check_shape(self.shape, self.dtype)
        before = plans_for(self.shape, self.dtype, self.device)
        fixed = plans_for(self.shape, self.dtype, self.device, deterministic=True).at(1)
        classes: list[MeasuredClass] = []
        for rows in row_counts:
            classes.append(self._class(rows, before.at(rows)))
            keep(Entry(self.shape, self.dtype, measured, self._whole(classes, before), fixed))
        fixed = self._deterministic(fixed)
        keep(Entry(self.shape, self.dtype, measured, self._whole(classes, before), fixed))

    def _class(self, rows: int, before: Plan) -> MeasuredClass:
        gate_ups = self._fastest(Launch.GATE_UP, rows, before.gate_up)
        downs = self._fastest(Launch.DOWN, rows, before.down)
        plans = self._plans(gate_ups, downs)
        times = self.stopwatch.plans(rows, plans)
        timed = list(zip(times, plans, strict=True))
        # The library rounds gate and up on their way through memory, half as much error again: it
        # is chosen where nothing else runs.
        us, best = min(
            (pair for pair in timed if pair[1] != _LIBRARY), default=timed[-1], key=_first
        )
        reason = self._reason(rows, dict(zip(plans, times, strict=True)), best)
        self.say(f"{rows} rows: {reason}")
        library_us = times[plans.index(_LIBRARY)]
        return MeasuredClass(rows, replace(best, reason=reason), _tenths(us), _tenths(library_us))

    def _size(self, launch: Launch, rows: int) -> LaunchSize:
        size = gate_up_size if launch is Launch.GATE_UP else down_size
        return size(self.shape, rows, self.dtype, self.device)

    def _fastest(self, launch: Launch, rows: int, incumbent: Tile | None) -> list[Timed]:
        """The best few candidates and neighbours of theirs; what is used today is always tried."""
        size = self._size(launch, rows)
        tiles = candidates(size)
        first = tiles if incumbent is None else (incumbent, *tiles)
        found = self.stopwatch.tiles(launch, rows, list(dict.fromkeys(first)))[:_BEST]
        if not found:
            self.say(f"{rows} rows: no tile for {launch} can be used")
            return []
        tried = [timed.tile for timed in found]
        near = (each for tile in tried for each in neighbours(tile, size))
        return self.stopwatch.tiles(launch, rows, list(dict.fromkeys((*tried, *near))))[:_BEST]

    def _reason(self, rows: int, times: dict[Plan, float], best: Plan) -> str:
        is_few = rows <= self.device.crossover_rows(self.dtype)
        bound = "memory-bound" if is_few else "compute-bound"
        parts = [bound]
        for algorithm, name in (
            (Algorithm.TWO_LAUNCH, "two launches"),
            (Algorithm.FUSED_GATE_UP, "fused gate_up and the library's down"),
            (Algorithm.LIBRARY, "the library and the fused gate"),
        ):
            own = [us for plan, us in times.items() if plan.algorithm is algorithm]
            if own:
                parts.append(f"{name} {min(own):.1f} µs")
        if best.algorithm is Algorithm.LIBRARY:
            parts.append("no tile can be used here")
        elif times[_LIBRARY] < times[best]:
            parts.append("the library is faster, but rounds gate and up")
        if best.algorithm is Algorithm.FUSED_GATE_UP:
            parts.append("no tile measured here is as fast as the library's down")
        return "; ".join(parts)

    def _whole(self, classes: list[MeasuredClass], before: RowPlans) -> tuple[MeasuredClass, ...]:
        """The measured classes, and for more rows the plan of the last, or what there was before."""
        last = classes[-1]
        # Far above the crossover nothing changes any more but the number of row tiles.
        if last.up_to >= 2 * self.device.crossover_rows(self.dtype):
            return (*classes[:-1], replace(last, up_to=MAX_ROWS))
        rest = (
            MeasuredClass(limit, plan, None, None)
            for limit, plan in zip(before.limits, before.plans, strict=True)
            if limit > last.up_to
        )
        return (*classes, *rest)

    def _deterministic(self, before: Plan) -> Plan:
        """The tiles whose worst loss against the fastest of each row count is the least."""
        gate_up, down = before.tiles
        gate_up = self._least_loss(Launch.GATE_UP, gate_up)
        down = self._least_loss(Launch.DOWN, down)
        reason = "deterministic: of all tiles the least behind the fastest at 1, 16 and 64 rows"
        # When down starts changes nothing in what it adds.
        plans = [
            Plan(Algorithm.TWO_LAUNCH, gate_up, down, reason, overlap) for overlap in self._overlaps
        ]
        times = zip(*(self.stopwatch.plans(rows, plans) for rows in _FIXED_ROWS), strict=True)
        own, plan = min(zip(times, plans, strict=True), key=lambda pair: sum(pair[0]))
        told = ", ".join(f"{us:.1f}" for us in own)
        self.say(f"deterministic: {told} µs at 1, 16 and 64 rows")
        return plan

    @property
    def _overlaps(self) -> tuple[Overlap, ...]:
        return tuple(Overlap) if self.device.capability >= (9, 0) else (Overlap.NONE,)

    def _least_loss(self, launch: Launch, incumbent: Tile) -> Tile:
        several = candidates(self._size(launch, max(_FIXED_ROWS)))
        best = self._by_worst_loss(launch, dict.fromkeys((incumbent, *several)))[:_BEST]
        near = (
            each
            for tile in best
            for each in neighbours(tile, self._size(launch, max(_FIXED_ROWS)))
            if not each.share_tail
        )
        best = self._by_worst_loss(launch, dict.fromkeys((*best, *near)))
        return best[0] if best else incumbent

    def _by_worst_loss(self, launch: Launch, tiles: Iterable[Tile]) -> list[Tile]:
        worst = dict.fromkeys(tiles, 1.0)
        for rows in _FIXED_ROWS:
            timed = self.stopwatch.tiles(launch, rows, list(worst))
            losses = {each.tile: each.us / timed[0].us for each in timed}
            worst = {
                tile: max(loss, losses[tile]) for tile, loss in worst.items() if tile in losses
            }
        return sorted(worst, key=worst.__getitem__)

    def _plans(self, gate_ups: list[Timed], downs: list[Timed]) -> list[Plan]:
        """Whole MLPs: the best few pairs, the best gate_up with the library's down, the library."""
        few = _BEST - 1
        pairs = [
            Plan(Algorithm.TWO_LAUNCH, gate_up.tile, down.tile, "a pair of fast tiles", overlap)
            for gate_up, down, overlap in product(gate_ups[:few], downs[:few], self._overlaps)
        ]
        mixed = [
            Plan(Algorithm.FUSED_GATE_UP, gate_up.tile, None, "a fast tile")
            for gate_up in gate_ups[:1]
        ]
        return [*pairs, *mixed, _LIBRARY]


def check_shape(shape: MlpShape, dtype: DType) -> None:
    """Raise ValueError unless there is anything to choose for the shape."""
    if not is_aligned(shape, dtype):
        raise ValueError(
            f"{shape} {dtype} has rows that do not start on 16 bytes: such shapes have one tile, and "
            "nothing to choose"
        )


def _first(pair: tuple[float, Plan]) -> float:
    return pair[0]


def _tenths(us: float) -> float:
    return round(us, 1)
