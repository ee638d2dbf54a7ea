"""Slots in shared memory: their arithmetic, two mappings of the same pages, the seals."""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest

from gatefuse.link.arena import (
    PAGE_BYTES,
    PREFAULT_LIMIT_BYTES,
    Arena,
    SlotLayout,
    tensor_stride,
    tensors_bytes,
)


@pytest.mark.parametrize(
    ("largest", "region"),
    [
        (0, PAGE_BYTES),
        (1, PAGE_BYTES),
        (PAGE_BYTES - 1, PAGE_BYTES),
        (PAGE_BYTES, PAGE_BYTES),
        (PAGE_BYTES + 1, 2 * PAGE_BYTES),
        (7 * PAGE_BYTES, 7 * PAGE_BYTES),
    ],
)
def test_regions_are_whole_pages(largest: int, region: int) -> None:
    assert SlotLayout.for_regions(3, largest) == SlotLayout(3, region)


@pytest.mark.parametrize("slots", [1, 2, 5])
def test_regions_follow_each_other_without_overlap(slots: int) -> None:
    layout = SlotLayout.for_regions(slots, 5000)
    starts = []
    for slot in range(slots):
        starts += [layout.input_offset(slot), layout.output_offset(slot)]
    assert starts == [index * layout.region_bytes for index in range(2 * slots)]
    assert layout.total_bytes == 2 * slots * layout.region_bytes


@pytest.mark.parametrize(
    ("rows", "row_bytes", "stride"),
    [(1, 1, 256), (1, 255, 256), (1, 256, 256), (1, 257, 512), (3, 128, 512), (7, 512, 3584)],
)
def test_tensors_of_a_region_start_on_boundaries(rows: int, row_bytes: int, stride: int) -> None:
    assert tensor_stride(rows, row_bytes) == stride
    assert tensors_bytes(1, rows, row_bytes) == rows * row_bytes
    assert tensors_bytes(3, rows, row_bytes) == 2 * stride + rows * row_bytes


def test_a_new_arena_is_zero_and_its_regions_apart() -> None:
    layout = SlotLayout.for_regions(2, 100)
    arena = Arena.create(layout)
    regions = [view(slot) for slot in (0, 1) for view in (arena.input, arena.output)]
    assert [len(region) for region in regions] == [layout.region_bytes] * 4
    assert all(not np.frombuffer(region, np.uint8).any() for region in regions)
    for number, region in enumerate(regions):
        region[:] = bytes([number + 1]) * len(region)
    assert [set(region) for region in regions] == [{1}, {2}, {3}, {4}]
    for region in regions:
        region.release()
    arena.close()


def test_both_ends_see_the_same_rows() -> None:
    layout = SlotLayout.for_regions(2, 10)
    ours = Arena.create(layout)
    theirs = Arena(os.dup(ours.fd), layout)
    ours.input(1)[:5] = b"there"
    assert bytes(theirs.input(1)[:5]) == b"there"
    theirs.output(1)[:4] = b"back"
    assert bytes(ours.output(1)[:4]) == b"back"
    assert bytes(ours.output(0)[:4]) == bytes(4)
    ours.close()
    # The memory lives as long as one end has it.
    assert bytes(theirs.input(1)[:5]) == b"there"
    theirs.close()


@pytest.mark.parametrize("size", [0, PAGE_BYTES, 3 * PAGE_BYTES], ids=["empty", "less", "more"])
def test_no_peer_can_change_the_size(size: int) -> None:
    arena = Arena.create(SlotLayout(1, PAGE_BYTES))
    with pytest.raises(OSError, match="not permitted") as caught:
        os.ftruncate(arena.fd, size)
    assert caught.value.errno == errno.EPERM
    assert os.fstat(arena.fd).st_size == 2 * PAGE_BYTES
    arena.close()


def test_the_descriptor_stays_in_this_process() -> None:
    arena = Arena.create(SlotLayout(1, PAGE_BYTES))
    assert not os.get_inheritable(arena.fd)
    arena.close()


def test_closing_with_live_views_keeps_their_pages() -> None:
    arena = Arena.create(SlotLayout(1, PAGE_BYTES))
    view = arena.input(0)
    array = np.frombuffer(arena.map, np.uint8)
    view[:3] = b"abc"
    fd = arena.fd
    arena.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    assert bytes(view[:3]) == bytes(array[:3]) == b"abc"
    with pytest.raises(ValueError, match="released"):
        arena.input(0)


def test_closing_without_views_unmaps() -> None:
    arena = Arena.create(SlotLayout(1, PAGE_BYTES))
    arena.input(0)[:3] = b"abc"
    arena.close()
    assert arena.map.closed


def test_an_arena_above_the_prefault_limit() -> None:
    layout = SlotLayout(1, PREFAULT_LIMIT_BYTES)
    arena = Arena.create(layout)
    # Only the pages that are written are there.
    arena.output(0)[-1:] = b"z"
    assert os.fstat(arena.fd).st_blocks * 512 < PREFAULT_LIMIT_BYTES
    arena.close()


def test_a_layout_that_the_memory_does_not_hold() -> None:
    arena = Arena.create(SlotLayout(1, PAGE_BYTES))
    fd = os.dup(arena.fd)
    with pytest.raises(ValueError, match="greater than file size"):
        Arena(fd, SlotLayout(2, PAGE_BYTES))
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    arena.close()
