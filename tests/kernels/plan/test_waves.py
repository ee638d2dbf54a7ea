"""Columns that fill the multiprocessors evenly, against what was measured on an H200."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gatefuse_kernels.plan import KNOWN_DEVICES, Tile
from gatefuse_kernels.plan.waves import COLUMNS, in_even_waves, wave_time
from gatefuse_kernels.shapes import MAX_ROWS, DType

H200 = KNOWN_DEVICES["nvidia-h200"]
WIDE = Tile(128, 128, 64, 8, 4, False, descriptors=True, specialized=True)


@pytest.mark.parametrize(
    ("intermediate", "rows", "faster", "slower"),
    [
        (6144, 256, 96, 128),  # 24.2 and 26.5 us
        (6144, 512, 96, 128),  # 39.4 and 46.8
        (6144, 1024, 128, 96),  # 71.9 and 73.8
        (14336, 128, 112, 128),  # 66.9 and 67.3
        (14336, 256, 112, 128),  # 95.1 and 96.6
        (14336, 512, 112, 128),  # 180.3 and 187.4
        (14336, 1024, 128, 112),  # 331.2 and 368.6
        (25600, 256, 80, 112),  # 233.1 and 242.6
        (25600, 1024, 128, 112),  # 803.9 and 840.7
        (28672, 128, 112, 128),  # 249.1 and 251.6
        (28672, 256, 112, 128),  # 390.3 and 402.5
        (28672, 512, 128, 112),  # 674.5 and 750.7
    ],
)
def test_the_order_is_that_of_the_measurements(
    intermediate: int, rows: int, faster: int, slower: int
) -> None:
    """gate_up alone, `2026-11-30-h200-gate-up-explored.txt`, blocks 1 and 2."""
    first, second = (
        wave_time(replace(WIDE, columns=columns), rows, intermediate, H200.multiprocessors)
        for columns in (faster, slower)
    )
    assert first < second


def test_many_waves_take_the_widest_columns() -> None:
    assert in_even_waves(WIDE, MAX_ROWS, 14336, DType.BF16, H200) == WIDE


def test_a_pipeline_is_cut_where_wider_columns_need_the_room() -> None:
    narrow = replace(WIDE, columns=48, stages=6)
    wide = in_even_waves(narrow, MAX_ROWS, 14336, DType.BF16, H200)
    assert (wide.columns, wide.stages) == (128, 4)


def test_what_is_chosen_from_has_a_kernel() -> None:
    for columns in COLUMNS:
        assert replace(WIDE, columns=columns).sums_per_lane(products=2) <= 128
