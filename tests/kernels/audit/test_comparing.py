"""Counted by us against counted by the GPU."""

from __future__ import annotations

import pytest

from gatefuse_kernels import traffic
from gatefuse_kernels.audit.cases import Call
from gatefuse_kernels.audit.comparing import (
    KernelBytes,
    LaunchCount,
    compare,
    dram_ratios,
    launch_ratio,
)
from gatefuse_kernels.audit.counters import Counted
from gatefuse_kernels.shapes import MlpShape

SHAPE = MlpShape(4096, 14336)
FUSED = traffic.fused_mlp(SHAPE, 1, 2)
CALL = Call("ffn", "fused", 1, FUSED)
L2_BYTES = 60 << 20


def ran(kernel: str, read: int, written: int = 0) -> Counted:
    return Counted(kernel, read, written, read, written, 1e-6)


def launch(read: int, written: int, measured: Counted, backend: str = "fused") -> KernelBytes:
    return KernelBytes("m", backend, 1, "k", read, written, measured)


def test_launches_in_order() -> None:
    up, down = (ran("up", 234_900_224), ran("down", 117_491_712))
    compared, wrong = compare([CALL], [[up, down]])
    assert not wrong
    assert [(each.kernel, each.measured) for each in compared] == [
        ("swiglu_gate_up", up),
        ("swiglu_down", down),
    ]
    assert compared[0].read_bytes == FUSED[0].read_bytes
    assert compared[0].read_ratio == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("seen", [[], [ran("up", 1)], [ran("up", 1)] * 3])
def test_a_call_with_other_launches(seen: list[Counted]) -> None:
    """It is a mismatch, and what follows it is compared as ever."""
    good = [ran("up", 1), ran("down", 1)]
    compared, wrong = compare([CALL, CALL], [seen, good])
    assert len(compared) == 2
    (mismatch,) = wrong
    assert len(mismatch.measured) == len(seen)
    assert f"2 launches were counted (swiglu_gate_up, swiglu_down) and {len(seen)} ran" in str(
        mismatch
    )


def test_other_numbers_of_calls_cannot_be_told_apart() -> None:
    with pytest.raises(ValueError, match="1 calls were made and 2 seen"):
        compare([CALL], [[], []])


def test_a_helper_has_no_ratio() -> None:
    helper = traffic.helper_launch(FUSED[1])
    ((found,), _) = compare([Call("m", "eager", 1, (helper,))], [[ran("reduce", 8_399_104)]])
    assert (found.read_ratio, found.write_ratio) == (None, None)


def test_bytes_are_held_against_each_other_only_beyond_l2() -> None:
    large, small = 4 * L2_BYTES, L2_BYTES
    compared = [
        launch(large, small, ran("a", large * 2, 0)),
        launch(large, large, ran("b", large, large // 2)),
        launch(small, small, ran("c", 17 * small, 9 * small)),
    ]
    assert dram_ratios(compared, L2_BYTES) == {"dram_read": 1.5, "dram_write": 0.5}


def test_no_ratio_where_nothing_is_larger_than_l2() -> None:
    read_only = launch(2 * L2_BYTES, 1, ran("a", 2 * L2_BYTES, 12345))
    assert dram_ratios([read_only], L2_BYTES) == {"dram_read": 1.0}
    assert dram_ratios([], L2_BYTES) == {}


def test_what_the_textbook_reads_again_is_left_out() -> None:
    again = launch(100 * L2_BYTES, 1, ran("t", L2_BYTES), backend="textbook")
    assert dram_ratios([again], L2_BYTES) == {}


def test_errors_of_two_models_do_not_cancel_out() -> None:
    more = LaunchCount("a", 1, exported={"k": 10}, profiled={"k": 11})
    fewer = LaunchCount("b", 1, exported={"k": 10}, profiled={"k": 8})
    assert launch_ratio([more, fewer]) == 0.8
    assert not more.is_equal
    assert not fewer.is_equal


def test_equal_launches_may_have_other_names() -> None:
    same = LaunchCount("a", 3, exported={"k": 4, "l": 2}, profiled={"void k<1>": 6})
    assert same.is_equal
    assert launch_ratio([same]) == 1


def test_nothing_counted_is_not_equal() -> None:
    """A model whose launches were never exported must not pass."""
    nothing = LaunchCount("a", 3)
    assert not nothing.is_equal
    assert launch_ratio([nothing]) == 0
    assert launch_ratio([]) == 0
