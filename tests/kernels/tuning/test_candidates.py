"""Which tiles are worth timing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gatefuse_kernels.plan import KNOWN_DEVICES, DeviceProfile, Tile
from gatefuse_kernels.plan.shipped_tables import shipped_tables
from gatefuse_kernels.plan.table import Entry
from gatefuse_kernels.shapes import DType, MlpShape
from gatefuse_kernels.tuning.candidates import candidates, down_size, gate_up_size, neighbours

H200 = KNOWN_DEVICES["nvidia-h200"]

widths = st.sampled_from([64, 256, 688, 1024, 2048, 4096, 6144, 14336, 28672])


@settings(deadline=None)
@given(
    st.builds(MlpShape, widths, widths),
    st.sampled_from([1, 16, 32, 64, 128, 256, 1024, 8192]),
    st.sampled_from(DType),
    st.sampled_from(list(KNOWN_DEVICES.values())),
)
def test_there_are_some_and_each_can_be_launched(
    shape: MlpShape, rows: int, dtype: DType, device: DeviceProfile
) -> None:
    for size in (gate_up_size(shape, rows, dtype, device), down_size(shape, rows, dtype, device)):
        tiles = candidates(size)
        assert 0 < len(tiles) <= 320
        assert len(set(tiles)) == len(tiles)
        for tile in tiles:
            assert size.fits(tile)
            assert tile.sums_per_lane(size.products) <= 128
            assert not tile.is_streamed or rows <= tile.rows
            for near in neighbours(tile, size):
                assert size.fits(near)
                assert near != tile


@pytest.mark.parametrize("entry", shipped_tables()[0].entries, ids=lambda entry: str(entry.shape))
def test_what_was_found_before_would_be_found_again(entry: Entry) -> None:
    """The tiles that a wider search found, up to the 64 rows where they were searched for."""
    for measured in entry.classes:
        if measured.up_to > 64 or measured.us is None:
            continue
        for make_size, tile in zip((gate_up_size, down_size), measured.plan.tiles, strict=True):
            size = make_size(entry.shape, measured.up_to, entry.dtype, H200)
            tiles = candidates(size)
            assert tile in {*tiles, *(each for one in tiles for each in neighbours(one, size))}


def test_neighbours() -> None:
    shape = MlpShape(4096, 14336)
    tile = Tile(16, 64, 128, 4, 5, True)
    near = neighbours(tile, gate_up_size(shape, 16, DType.BF16, H200))
    assert replace(tile, stages=4) in near
    assert replace(tile, stages=6) in near
    assert replace(tile, stages=7) not in near, "does not fit"
    assert {each.group for each in near} == {8}, "one tile of rows has no order"
    several = neighbours(tile, gate_up_size(shape, 32, DType.BF16, H200))
    assert {each.group for each in several} == {1, 4, 8, 16}
    assert {each.splits for each in near} == {1}, "the gate needs whole sums"
    # 64 programs of 132: two or more for each tile would keep more of the device busy.
    few = neighbours(tile, down_size(shape, 16, DType.BF16, H200))
    assert {each.splits for each in few} == {1, 2, 3, 4}
    assert neighbours(Tile(1, 2, 2048, 8, 1, False), gate_up_size(shape, 1, DType.BF16, H200)) == ()


def test_the_last_waves_are_shared_out_unless_they_are_full() -> None:
    """224 tiles on 132 multiprocessors leave 92 for a second wave; 264 are two whole ones."""
    tile = Tile(128, 128, 64, 8, 3, True, descriptors=True, share_tail=True)
    part, whole = (
        candidates(gate_up_size(MlpShape(4096, intermediate), 256, DType.BF16, H200))
        for intermediate in (14336, 264 * 64)
    )
    assert tile in part
    assert tile not in whole
    assert replace(tile, share_tail=False) in whole


def _specialized(tiles: tuple[Tile, ...]) -> set[tuple[int, int]]:
    return {(tile.rows, tile.columns) for tile in tiles if tile.specialized}


def test_specialized_columns_make_even_waves() -> None:
    """6144 columns of 256 rows: 128 tiles of 128 x 96 fill 132 multiprocessors, 96 of 128 x 128 do not."""
    narrow, wide = MlpShape(2048, 6144), MlpShape(4096, 14336)
    few = _specialized(candidates(gate_up_size(narrow, 256, DType.BF16, H200)))
    assert (128, 96) in few
    assert (128, 128) not in few
    assert (64, 48) in _specialized(candidates(gate_up_size(narrow, 64, DType.BF16, H200)))
    # 112 columns make 128 tiles of each row tile.
    assert (128, 112) in _specialized(candidates(gate_up_size(wide, 256, DType.FP16, H200)))
    # Many waves: how full the last one is hardly matters, and wide tiles load least.
    assert (128, 128) in _specialized(candidates(gate_up_size(wide, 8192, DType.BF16, H200)))


@pytest.mark.parametrize("device", ["nvidia-b200", "nvidia-a100-sxm4-80gb", "nvidia-l40s"])
def test_specialized_tiles_are_hoppers(device: str) -> None:
    shape = MlpShape(4096, 14336)
    tiles = candidates(gate_up_size(shape, 1024, DType.BF16, KNOWN_DEVICES[device]))
    assert not _specialized(tiles)


def test_specialized_tiles_are_for_many_rows_of_gate_up() -> None:
    shape = MlpShape(4096, 14336)
    assert not _specialized(candidates(gate_up_size(shape, 63, DType.BF16, H200)))
    assert not _specialized(candidates(gate_up_size(shape, 1024, DType.FP32, H200)))
    assert not _specialized(candidates(down_size(shape, 1024, DType.BF16, H200)))


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_one_or_two_rows_may_be_streamed(rows: int) -> None:
    size = gate_up_size(MlpShape(4096, 14336), rows, DType.BF16, H200)
    streamed = [tile for tile in candidates(size) if tile.is_streamed]
    assert bool(streamed) == (rows <= 2)
    assert all(tile.rows == rows for tile in streamed)


def test_descriptors_where_there_are_any() -> None:
    shape = MlpShape(4096, 14336)
    for name, dtype, expected in (
        ("nvidia-h200", DType.BF16, True),
        ("nvidia-h200", DType.FP32, False),
        ("nvidia-l40s", DType.BF16, False),
    ):
        tiles = candidates(gate_up_size(shape, 64, dtype, KNOWN_DEVICES[name]))
        assert any(tile.descriptors for tile in tiles) == expected
