"""Which plan is the fastest for each class of row counts, given a stopwatch. No torch."""

from collections.abc import Callable, Sequence
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
from gatefuse_kernels.tuning.deterministic import ClassTimes, DeterministicSearch
from gatefuse_kernels.tuning.stopwatch import Launch, Stopwatch, Timed

ROWS = (1, 2, 16, 32, 64, 128, 256, 512, 1024, 2048)
"""The largest row counts of the classes that are told apart."""

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
        """Measure each row count, and then the deterministic plans; `keep` gets all there is so far.

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
        alike = plans_for(self.shape, self.dtype, self.device, deterministic=True)
        classes: list[MeasuredClass] = []
        timed: dict[int, ClassTimes] = {}
        for rows in row_counts:
            found, times = self._class(rows, before.at(rows))
            classes.append(found)
            timed[rows] = times
            keep(Entry(self.shape, self.dtype, measured, self._whole(classes, before), alike))
        search = DeterministicSearch(self.shape, self._overlaps, self.stopwatch, self.say)
        alike = search.run(timed, alike, self._goes_on(row_counts[-1]))
        keep(Entry(self.shape, self.dtype, measured, self._whole(classes, before), alike))

    def _class(self, rows: int, before: Plan) -> tuple[MeasuredClass, ClassTimes]:
        gate_ups = self._timed(Launch.GATE_UP, rows, before.gate_up)
        downs = self._timed(Launch.DOWN, rows, before.down)
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
        found = MeasuredClass(rows, replace(best, reason=reason), _tenths(us), _tenths(library_us))
        return found, ClassTimes(gate_ups, downs)

    def _size(self, launch: Launch, rows: int) -> LaunchSize:
        size = gate_up_size if launch is Launch.GATE_UP else down_size
        return size(self.shape, rows, self.dtype, self.device)

    def _timed(self, launch: Launch, rows: int, incumbent: Tile | None) -> list[Timed]:
        """Tiles with their times; what is used today is always among them.

        First what was looked at closely, the best few candidates and their neighbours, the fastest
        of them first; then all others.
        """
        size = self._size(launch, rows)
        tiles = candidates(size)
        first = tiles if incumbent is None else (incumbent, *tiles)
        found = self.stopwatch.tiles(launch, rows, list(dict.fromkeys(first)))
        if not found:
            self.say(f"{rows} rows: no tile for {launch} can be used")
            return []
        tried = [timed.tile for timed in found[:_BEST]]
        near = (each for tile in tried for each in neighbours(tile, size))
        closer = self.stopwatch.tiles(launch, rows, list(dict.fromkeys((*tried, *near))))
        seen = {timed.tile for timed in closer}
        return [*closer, *(timed for timed in found if timed.tile not in seen)]

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
        if self._goes_on(last.up_to):
            return (*classes[:-1], replace(last, up_to=MAX_ROWS))
        rest = (MeasuredClass(limit, plan, None, None) for limit, plan in before.beyond(last.up_to))
        return (*classes, *rest)

    def _goes_on(self, rows: int) -> bool:
        """Far above the crossover nothing changes any more but the number of row tiles."""
        return rows >= 2 * self.device.crossover_rows(self.dtype)

    @property
    def _overlaps(self) -> tuple[Overlap, ...]:
        return tuple(Overlap) if self.device.capability >= (9, 0) else (Overlap.NONE,)

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
