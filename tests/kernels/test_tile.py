"""Tiles: grids, shared memory, what the compiler would refuse."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gatefuse_kernels.plan import KNOWN_DEVICES, Algorithm, Plan, Tile
from gatefuse_kernels.plan.fitting import fits, fitted, tile_fits
from gatefuse_kernels.shapes import DType

TILE = Tile(16, 64, 128, 4, 5, True)
H200 = KNOWN_DEVICES["nvidia-h200"]
A100 = KNOWN_DEVICES["nvidia-a100-sxm4-80gb"]
L40S = KNOWN_DEVICES["nvidia-l40s"]
B200 = KNOWN_DEVICES["nvidia-b200"]
SPECIALIZED = Tile(128, 112, 64, 8, 4, False, descriptors=True, specialized=True)


def test_grid() -> None:
    assert TILE.grid(1, 64) == 1
    assert TILE.grid(17, 65) == 4
    assert TILE.grid(65_537, 64) == 4097
    assert replace(TILE, splits=3).grid(17, 65) == 12
    with pytest.raises(ValueError, match="2147483648 programs"):
        TILE.grid(1 << 18, 1 << 23)


@pytest.mark.parametrize(
    "change",
    [{"rows": 24}, {"columns": 0}, {"inner": -16}, {"warps": 3}, {"stages": 0}, {"splits": 0}],
    ids=str,
)
def test_sizes_are_checked(change: dict[str, Any]) -> None:
    [name] = change
    with pytest.raises(ValueError, match=f"a tile's {name} must be"):
        replace(TILE, **change)


@pytest.mark.parametrize(
    "change",
    [
        {"rows": 512},
        {"columns": 512},
        {"inner": 8192},
        {"warps": 64},
        {"stages": 257},
        {"group": 65},
        {"splits": 1025},
    ],
    ids=str,
)
def test_sizes_have_a_maximum(change: dict[str, Any]) -> None:
    [name] = change
    with pytest.raises(ValueError, match=f"a tile's {name} must be at most"):
        replace(TILE, **change)


def test_what_no_kernel_can_do() -> None:
    changes: tuple[dict[str, Any], ...] = ({"columns": 8}, {"inner": 8})
    for change in changes:
        with pytest.raises(ValueError, match="matrix units"):
            replace(TILE, **change)
    assert Tile(1, 1, 8, 4, 1, False).is_streamed
    with pytest.raises(ValueError, match="a streamed tile's inner must be at least 8, got 4"):
        Tile(1, 1, 4, 4, 1, False)
    with pytest.raises(ValueError, match="descriptors"):
        replace(TILE, inner=512, descriptors=True)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"descriptors": False}, "comes through descriptors"),
        ({"swapped": True}, "is not swapped"),
        ({"splits": 2}, "has whole sums"),
        ({"columns": 120}, "and the sum of at most 3 powers of two from 16 to 128, got 120"),
        ({"columns": 240}, "and the sum of at most 3 powers of two from 16 to 128, got 240"),
        ({"columns": 224}, "columns must be at most 208, and the sum of .*, got 224"),
        ({"columns": 256}, "columns must be at most 208, and the sum of .*, got 256"),
        ({"columns": 0}, "at least 16 columns"),
        ({"stages": 1}, "has at least 2 stages, got 1"),
        ({"rows": 64}, "has 64 rows and 4 warps, or 128 and 8, got 64 and 8"),
        ({"rows": 256, "warps": 16}, "has 64 rows and 4 warps, or 128 and 8, got 256 and 16"),
    ],
    ids=str,
)
def test_what_the_specialized_kernel_cannot_do(change: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        replace(SPECIALIZED, **change)


def test_only_specialized_columns_are_sums_of_powers_of_two() -> None:
    assert SPECIALIZED.parts == (64, 32, 16)
    assert replace(SPECIALIZED, columns=128).parts == (128,)
    assert replace(SPECIALIZED, columns=208).parts == (128, 64, 16)
    with pytest.raises(ValueError, match="columns must be a power of two, got 112"):
        replace(SPECIALIZED, specialized=False)


def test_a_specialized_tile_stores_beside_its_operands() -> None:
    operands = (128 + 2 * 112) * 64 * 2 * 4
    assert 0 < SPECIALIZED.shared_bytes(2, 2) - operands - 128 * 64 * 2 < 1024


def test_shared_memory_is_stages_of_operands_or_one_result() -> None:
    operands = (16 + 2 * 64) * 128 * 2 * 5
    assert 0 < TILE.shared_bytes(products=2, itemsize=2) - operands < 1024
    result = Tile(128, 128, 16, 8, 1, False)
    assert 0 < result.shared_bytes(products=1, itemsize=2) - 128 * 128 * 4 < 1024


def test_sums_per_lane() -> None:
    assert Tile(128, 128, 64, 8, 4, False).sums_per_lane(products=2) == 128


def test_a_pipeline_is_cut_to_the_shared_memory() -> None:
    assert fitted(TILE, 2, DType.BF16, H200) == TILE
    assert fitted(TILE, 2, DType.BF16, A100) == replace(TILE, stages=4)
    # Two stages would be all that fits 99 KiB: half as long, and more of them.
    assert fitted(TILE, 2, DType.BF16, L40S) == replace(TILE, inner=64, stages=5)
    with pytest.raises(ValueError, match="no pipeline"):
        fitted(Tile(256, 256, 64, 8, 3, False), 2, DType.FP32, L40S)


def test_descriptors_need_hopper() -> None:
    tile = Tile(16, 64, 64, 4, 3, True, descriptors=True)
    assert tile_fits(tile, 2, DType.BF16, H200)
    assert not tile_fits(tile, 2, DType.BF16, A100)
    assert not tile_fits(tile, 2, DType.FP32, H200), "nobody tried"


def test_specialized_tiles_are_for_hopper_and_two_bytes() -> None:
    assert tile_fits(SPECIALIZED, 2, DType.BF16, H200)
    assert tile_fits(SPECIALIZED, 2, DType.FP16, H200)
    assert not tile_fits(SPECIALIZED, 2, DType.FP32, H200)
    assert not tile_fits(SPECIALIZED, 2, DType.BF16, B200), "Blackwell has no wgmma"
    assert not tile_fits(replace(SPECIALIZED, stages=6), 2, DType.BF16, H200)


def test_a_plan_has_the_tiles_of_its_algorithm() -> None:
    for algorithm in Algorithm:
        gate_up = TILE if algorithm.tiles_gate_up else None
        down = TILE if algorithm.tiles_down else None
        plan = Plan(algorithm, gate_up, down, "because")
        assert fits(plan, DType.BF16, H200)
        for wrong in ((gate_up, None if down else TILE), (None if gate_up else TILE, down)):
            with pytest.raises(ValueError, match=f"a {algorithm} plan"):
                Plan(algorithm, *wrong, "because")
        if gate_up is None or down is None:
            with pytest.raises(ValueError, match="no pair of tiles"):
                _ = plan.tiles


def test_a_plan_says_why_and_splits_down_alone() -> None:
    with pytest.raises(ValueError, match="says why"):
        Plan(Algorithm.LIBRARY, None, None, "")
    split = replace(TILE, splits=4)
    assert Plan(Algorithm.TWO_LAUNCH, TILE, split, "because").tiles == (TILE, split)
    shared = replace(TILE, swapped=True, descriptors=True, share_tail=True)
    assert Plan(Algorithm.TWO_LAUNCH, shared, TILE, "because").gate_up == shared
    with pytest.raises(ValueError, match="down shares out no tiles"):
        Plan(Algorithm.TWO_LAUNCH, TILE, shared, "because")
    with pytest.raises(ValueError, match="down has no specialized kernel"):
        Plan(Algorithm.TWO_LAUNCH, TILE, SPECIALIZED, "because")
    with pytest.raises(ValueError, match="gate_up cannot be split: the gate needs whole sums"):
        Plan(Algorithm.TWO_LAUNCH, split, TILE, "because")


def test_plans_that_differ_in_their_reason_are_equal() -> None:
    assert Plan(Algorithm.LIBRARY, None, None, "a") == Plan(Algorithm.LIBRARY, None, None, "b")
