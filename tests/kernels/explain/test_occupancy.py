"""Programs a multiprocessor holds, against what Nsight Compute said of kernels that ran on an H200."""

from __future__ import annotations

import pytest

from gatefuse_kernels.explain.occupancy import occupancy


@pytest.mark.parametrize(
    ("registers", "shared_bytes", "warps", "programs", "limited_by"),
    [
        # gate_up and down of one row: 18.1 and 4.43 waves of 14336 and 4096 programs on 132.
        (40, 32, 8, 6, "registers"),
        (72, 16, 4, 7, "registers"),
        # gate_up of 64 rows: 0.57 waves of 224.
        (116, 73_728, 4, 3, "shared memory"),
        (42, 221_240, 4, 1, "shared memory"),
        (16, 0, 8, 8, "threads"),
        (16, 0, 1, 32, "program slots"),
        (255, 0, 32, 0, "registers"),
        (64, 240_000, 4, 0, "shared memory"),
    ],
)
def test_hopper(
    registers: int, shared_bytes: int, warps: int, programs: int, limited_by: str
) -> None:
    found = occupancy((9, 0), registers, shared_bytes, warps)
    assert (found.programs, found.limited_by) == (programs, limited_by)
    assert found.share == programs * warps / 64


def test_registers_come_in_units() -> None:
    """33 registers take as many as 40: 1280 a warp, and 12 warps to each quarter."""
    assert (
        occupancy((9, 0), 33, 0, 1).by_registers == occupancy((9, 0), 40, 0, 1).by_registers == 48
    )
    assert occupancy((9, 0), 41, 0, 1).by_registers == 40


def test_a_program_that_fills_a_block_of_shared_memory_runs_alone() -> None:
    """227 KiB and the system's 1 KiB are all there is."""
    assert occupancy((9, 0), 32, 227 << 10, 4).by_shared == 1
    assert occupancy((9, 0), 32, (227 << 10) + 1, 4).by_shared == 0
    assert occupancy((8, 9), 32, 99 << 10, 4).by_shared == 1


@pytest.mark.parametrize(
    ("capability", "warps", "slots"),
    [((8, 0), 64, 32), ((8, 6), 48, 16), ((8, 9), 48, 24), ((10, 3), 64, 32), ((12, 0), 48, 24)],
)
def test_generations_differ(capability: tuple[int, int], warps: int, slots: int) -> None:
    found = occupancy(capability, 16, 0, 1)
    assert (found.most_warps, found.by_slots) == (warps, slots)


def test_older_ones_are_unknown() -> None:
    with pytest.raises(ValueError, match="capability"):
        occupancy((7, 5), 32, 0, 4)
