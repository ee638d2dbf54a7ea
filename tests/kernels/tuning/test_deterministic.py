"""Which tiles the deterministic mode gets, of times that are made up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from gatefuse_kernels.plan import Algorithm, Overlap, Plan, RowPlans, Tile
from gatefuse_kernels.plan.summation import check_deterministic
from gatefuse_kernels.shapes import MAX_ROWS, MlpShape
from gatefuse_kernels.tuning.deterministic import ClassTimes, DeterministicSearch
from gatefuse_kernels.tuning.stopwatch import LOOKED_AT_CLOSELY, Launch, Timed

SHAPE = MlpShape(4096, 14336)
FEW = Tile(16, 64, 64, 4, 3, True)
MANY = Tile(128, 128, 64, 8, 4, False)
BEFORE = RowPlans.of_one(Plan(Algorithm.TWO_LAUNCH, FEW, FEW, "before"))

Us = Callable[[int, Tile], float]


@dataclass
class FakeStopwatch:
    """Times of down by row count and tile; gate_up takes as long as its tile has stages."""

    down_us: Us = lambda rows, tile: 1.0
    overlap: Overlap = Overlap.NONE
    """The fastest."""
    usable: Callable[[Launch, int], bool] = lambda launch, rows: True
    differ: Mapping[Launch, set[Tile]] = field(default_factory=dict)
    """Tiles whose bits are not those of the others."""

    def tiles(self, launch: Launch, rows: int, tiles: Sequence[Tile]) -> list[Timed]:
        assert len(set(tiles)) == len(tiles) <= LOOKED_AT_CLOSELY
        if not self.usable(launch, rows):
            return []
        timed = [Timed(tile, self._us(launch, rows, tile)) for tile in tiles]
        return sorted(timed, key=lambda each: each.us)

    def _us(self, launch: Launch, rows: int, tile: Tile) -> float:
        return self.down_us(rows, tile) if launch is Launch.DOWN else float(tile.stages)

    def plans(self, rows: int, plans: Sequence[Plan]) -> list[float]:
        return [20.0 if plan.overlap is self.overlap else 30.0 for plan in plans]

    def same_bits(self, launch: Launch, tiles: Sequence[Tile]) -> bool:
        odd = self.differ.get(launch, set())
        return len({tile in odd for tile in tiles}) == 1


def timed(*tiles: Tile) -> list[Timed]:
    """Of a first look: as fast as they are early."""
    return [Timed(tile, 1.0 + place) for place, tile in enumerate(tiles)]


def times(*downs: Tile, gate_ups: Sequence[Tile] = (FEW,)) -> ClassTimes:
    return ClassTimes(timed(*gate_ups), timed(*downs))


def search(
    classes: Mapping[int, ClassTimes],
    stopwatch: FakeStopwatch,
    before: RowPlans = BEFORE,
    goes_on: bool = True,
    said: list[str] | None = None,
) -> RowPlans:
    say = (said if said is not None else []).append
    found = DeterministicSearch(SHAPE, tuple(Overlap), stopwatch, say).run(classes, before, goes_on)
    check_deterministic(found, SHAPE)
    return found


def downs(plans: RowPlans) -> list[Tile]:
    return [plan.tiles[1] for plan in plans.plans]


def in_parts(tile: Tile, splits: int) -> Tile:
    return replace(tile, splits=splits)


@pytest.mark.parametrize(
    ("slower", "splits"),
    [({(16, 1): 2.0, (1024, 2): 1.1}, 2), ({(16, 1): 1.1, (1024, 2): 2.0}, 1)],
    ids=["parts", "whole"],
)
def test_the_order_that_loses_least_where_it_loses_most_is_for_all_rows(
    slower: dict[tuple[int, int], float], splits: int
) -> None:
    """Where nobody timed an order, the fastest tiles are cut like it."""
    classes = {16: times(in_parts(FEW, 2), FEW), 1024: times(MANY)}
    stopwatch = FakeStopwatch(lambda rows, tile: slower.get((rows, tile.splits), 1.0))
    found = search(classes, stopwatch)
    assert found.limits == (16, MAX_ROWS)
    assert downs(found) == [in_parts(FEW, splits), in_parts(MANY, splits)]


def test_whole_sums_are_tried_though_they_are_the_fastest_nowhere() -> None:
    """A third of 14336 in steps of 64 is not a third in steps of 128."""
    short, long = in_parts(FEW, 3), in_parts(replace(FEW, inner=128), 3)
    found = search({16: times(short, FEW), 64: times(long, FEW)}, FakeStopwatch())
    assert downs(found) == [FEW, FEW]


def test_the_first_look_is_not_the_last() -> None:
    second = replace(FEW, stages=7)
    slow_first = FakeStopwatch(lambda rows, tile: 1.0 if tile == second else 2.0)
    found = search({16: times(FEW, second, gate_ups=(MANY, FEW))}, slow_first)
    assert found.plans[0].tiles == (FEW, second), "three stages take gate_up less than four"


def test_tiles_whose_sums_the_row_count_changes_are_passed_over() -> None:
    shared = replace(FEW, descriptors=True, share_tail=True)
    streamed = Tile(1, 1, 2048, 8, 1, False)
    classes = {1: times(streamed, FEW, gate_ups=(streamed, shared, FEW))}
    assert search(classes, FakeStopwatch()).plans[0].tiles == (FEW, FEW)


@pytest.mark.parametrize("overlap", Overlap)
def test_down_starts_when_it_is_the_fastest(overlap: Overlap) -> None:
    said: list[str] = []
    classes = {1: times(FEW), 16: times(FEW)}
    found = search(classes, FakeStopwatch(overlap=overlap), said=said)
    assert [plan.overlap for plan in found.plans] == [overlap] * 2
    assert [plan.reason for plan in found.plans] == [
        "deterministic: whole sums; 20.0 µs at one row",
        "deterministic: whole sums; 20.0 µs at 16 rows",
    ]
    assert said == ["deterministic: 20.0, 20.0 µs at 1, 16 rows"]


@pytest.mark.parametrize("launch", Launch)
def test_where_no_tile_can_be_used_the_plans_of_before_stay(launch: Launch) -> None:
    said: list[str] = []
    stopwatch = FakeStopwatch(usable=lambda asked, rows: (asked, rows) != (launch, 64))
    assert search({16: times(FEW), 64: times(FEW)}, stopwatch, said=said) == BEFORE
    assert said == ["deterministic: at some row counts no tile can be used"]


def test_more_rows_than_were_timed_keep_their_plans_if_those_add_up_alike() -> None:
    before = BEFORE.plans[0]
    classes = {16: times(replace(FEW, stages=7)), 64: times(MANY)}
    kept = search(classes, FakeStopwatch(), goes_on=False)
    assert (kept.limits, kept.plans[-1]) == ((16, 64, MAX_ROWS), before)
    assert search(classes, FakeStopwatch()).limits == (16, MAX_ROWS), "the last goes on"
    other = RowPlans.of_one(replace(before, down=in_parts(FEW, 2)))
    assert search(classes, FakeStopwatch(), other, goes_on=False).limits == (16, MAX_ROWS)


@pytest.mark.parametrize("launch", Launch)
def test_where_bits_depend_on_the_tile_one_plan_is_for_all_rows(launch: Launch) -> None:
    said: list[str] = []
    classes = {rows: times(MANY, gate_ups=(FEW,)) for rows in (16, 512)}
    at_64 = replace(FEW, stages=5)
    classes[64] = times(at_64, gate_ups=(at_64,))
    stopwatch = FakeStopwatch(differ={launch: {at_64}})
    found = search(dict(sorted(classes.items())), stopwatch, said=said)
    assert downs(found) == [at_64]
    assert said[-1] == f"deterministic: tiles of {launch} that should add up alike do not"


def test_the_bits_of_plans_for_more_rows_are_compared_too() -> None:
    before = RowPlans.of_one(replace(BEFORE.plans[0], down=MANY))
    stopwatch = FakeStopwatch(differ={Launch.DOWN: {MANY}})
    classes = {rows: times(replace(FEW, stages=rows)) for rows in (16, 64)}
    found = search(classes, stopwatch, before, goes_on=False)
    assert found.limits == (16, MAX_ROWS)
    assert MANY not in downs(found)
