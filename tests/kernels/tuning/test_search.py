"""The search over a stopwatch that makes its times up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from gatefuse_kernels.plan import KNOWN_DEVICES, Algorithm, Plan, Tile, plans_for
from gatefuse_kernels.plan.table import Entry, Measurement
from gatefuse_kernels.shapes import MAX_ROWS, DType, MlpShape
from gatefuse_kernels.tuning.search import Search
from gatefuse_kernels.tuning.stopwatch import Launch, Timed

SHAPE = MlpShape(2560, 9728)
L40S = KNOWN_DEVICES["nvidia-l40s"]
MEASURED = Measurement("2026-11-30", "2.11", "3.6", "gatefuse tune")


def tile_us(tile: Tile) -> float:
    """The fewer rows and the deeper the pipeline, the faster; any fixed order would do."""
    if tile.is_streamed:
        return 9.0
    return 10 + tile.rows / 16 + tile.columns / 64 + 8 / tile.stages + tile.group / 100


class FakeStopwatch:
    """`library_us` from its row count on, and tiles by `tile_us`."""

    def __init__(
        self,
        library_us: Callable[[int], float],
        usable: Callable[[Launch, Tile], bool] = lambda launch, tile: True,
        library_down_us: float = 1000.0,
    ) -> None:
        self.library_us = library_us
        self.usable = usable
        self.library_down_us = library_down_us

    def tiles(self, launch: Launch, rows: int, tiles: Sequence[Tile]) -> list[Timed]:
        assert len(set(tiles)) == len(tiles)
        timed = [Timed(tile, tile_us(tile)) for tile in tiles if self.usable(launch, tile)]
        return sorted(timed, key=lambda each: each.us)

    def plans(self, rows: int, plans: Sequence[Plan]) -> list[float]:
        return [self._plan_us(rows, plan) for plan in plans]

    def same_bits(self, launch: Launch, tiles: Sequence[Tile]) -> bool:
        return True

    def _plan_us(self, rows: int, plan: Plan) -> float:
        if plan.algorithm is Algorithm.LIBRARY:
            return self.library_us(rows)
        assert plan.gate_up is not None
        down_us = tile_us(plan.down) if plan.down else self.library_down_us
        return tile_us(plan.gate_up) + down_us


def search(stopwatch: FakeStopwatch, rows: Sequence[int], shape: MlpShape = SHAPE) -> list[Entry]:
    """Every entry that was kept, in order."""
    kept: list[Entry] = []
    Search(shape, DType.BF16, L40S, stopwatch, lambda text: None).run(rows, MEASURED, kept.append)
    return kept


def test_the_fastest_is_written_with_its_figures() -> None:
    *_, entry = search(FakeStopwatch(lambda rows: 100.0), (16, 64))
    assert (entry.shape, entry.dtype, entry.measured) == (SHAPE, DType.BF16, MEASURED)
    first = entry.classes[0]
    assert first.up_to == 16
    assert first.plan.algorithm is Algorithm.TWO_LAUNCH
    gate_up, down = first.plan.tiles
    # Found by going on from the best of the first round, whose deepest pipelines have 8 stages.
    assert (gate_up.stages, down.stages) == (10, 10)
    assert gate_up.rows == 16
    assert first.us == pytest.approx(tile_us(gate_up) + tile_us(down), abs=0.1)
    assert first.library_us == 100.0
    assert first.plan.reason.startswith("memory-bound; two launches ")
    assert "the library and the fused gate 100.0 µs" in first.plan.reason


def test_a_library_that_is_faster_but_less_exact_is_told_of_and_not_taken() -> None:
    def library_us(rows: int) -> float:
        return 100.0 if rows < 1024 else 1.0

    *_, entry = search(FakeStopwatch(library_us), (16, 1024))
    last = entry.classes[-1]
    assert (last.up_to, last.plan.algorithm) == (MAX_ROWS, Algorithm.TWO_LAUNCH)
    assert last.library_us == 1.0
    assert last.plan.reason.startswith("compute-bound; ")
    assert last.plan.reason.endswith("the library is faster, but rounds gate and up")
    assert "rounds" not in entry.classes[0].plan.reason


def test_a_library_that_is_fast_at_down_alone() -> None:
    *_, entry = search(FakeStopwatch(lambda rows: 100.0, library_down_us=1.0), (16,))
    first = entry.classes[0].plan
    assert first.algorithm is Algorithm.FUSED_GATE_UP
    assert "as fast as the library's down" in first.reason


def test_where_no_tile_can_be_used_the_library_is_left() -> None:
    *_, entry = search(FakeStopwatch(lambda rows: 100.0, lambda launch, tile: False), (16,))
    assert entry.classes[0].plan.algorithm is Algorithm.LIBRARY
    assert entry.classes[0].plan.reason.endswith("no tile can be used here")
    # The deterministic mode has no library to fall back on.
    assert entry.deterministic == plans_for(SHAPE, DType.BF16, L40S, deterministic=True)


def test_what_was_measured_so_far_is_kept_and_whole() -> None:
    kept = search(FakeStopwatch(lambda rows: 100.0), (16, 32, 1024))
    assert len(kept) == 4, "after each class, and after the deterministic plans"
    before = plans_for(SHAPE, DType.BF16, L40S)
    first, second, third, last = kept
    assert [measured.up_to for measured in first.classes] == [16, 32, 64, 419, MAX_ROWS]
    assert first.classes[0].us is not None
    assert [measured.us for measured in first.classes[1:]] == [None] * 4
    assert [measured.plan for measured in first.classes[1:]] == list(before.plans[1:])
    assert second.classes[0] == first.classes[0]
    # Far above the crossover the last class goes on for all rows.
    assert [measured.up_to for measured in third.classes] == [16, 32, MAX_ROWS]
    assert last.classes == third.classes


def test_deterministic_plans_are_the_fastest_that_add_up_alike() -> None:
    *_, entry = search(FakeStopwatch(lambda rows: 100.0), (1, 16, 1024))
    fixed = entry.deterministic
    assert fixed is not None
    assert fixed.limits == (1, 16, MAX_ROWS)
    # As fast as the default's, but for a single row, whose default tiles are streamed.
    assert entry.classes[0].plan.tiles[0].is_streamed
    assert fixed.plans[0].tiles[0].rows == 16
    for measured, plan in zip(entry.classes[1:], fixed.plans[1:], strict=True):
        assert plan.tiles == measured.plan.tiles
    assert fixed.plans[1].reason == (
        f"deterministic: whole sums; {sum(map(tile_us, fixed.plans[1].tiles)):.1f} µs at 16 rows"
    )


def test_what_is_used_today_is_always_tried() -> None:
    incumbent = plans_for(SHAPE, DType.BF16, L40S).at(16).tiles

    def only_incumbent(launch: Launch, tile: Tile) -> bool:
        return tile == incumbent[0 if launch is Launch.GATE_UP else 1]

    *_, entry = search(FakeStopwatch(lambda rows: 100.0, only_incumbent), (16,))
    assert entry.classes[0].plan.tiles == incumbent


def test_unaligned_shapes_have_nothing_to_choose() -> None:
    with pytest.raises(ValueError, match="one tile, and nothing to choose"):
        search(FakeStopwatch(lambda rows: 100.0), (16,), replace(SHAPE, hidden=2561))
