"""Which tiles add up alike, as 50 tiles did on an H200."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gatefuse_kernels.plan import Algorithm, Plan, RowPlans, Tile
from gatefuse_kernels.plan.summation import add_alike, check_deterministic, order_of
from gatefuse_kernels.shapes import MAX_ROWS, MlpShape

FEW = Tile(16, 64, 64, 4, 3, True)
MANY = Tile(128, 128, 64, 8, 4, False, descriptors=True, specialized=True)
STREAMED = Tile(1, 1, 2048, 8, 1, False)
SHAPE = MlpShape(4096, 14336)


def pair(down: Tile) -> Plan:
    return Plan(Algorithm.TWO_LAUNCH, FEW, down, "a test's")


def test_whole_sums_are_alike_whatever_the_tile() -> None:
    for tile in (FEW, MANY, replace(FEW, inner=256), replace(FEW, descriptors=True)):
        for inner in (4096, 1000):
            assert order_of(tile, inner) == (inner,)


@pytest.mark.parametrize(
    ("splits", "alike"),
    [(2, True), (3, False), (4, True)],  # 2026-11-30-h200-summation-order.txt
)
def test_parts_are_alike_where_they_are_cut_at_the_same_places(splits: int, alike: bool) -> None:
    short, long = (replace(FEW, inner=inner, splits=splits) for inner in (64, 128))
    assert (order_of(short, 14336) == order_of(long, 14336)) is alike
    assert add_alike((pair(short), pair(long)), SHAPE) is alike


def test_parts_are_not_alike_one_whole_sum() -> None:
    assert not add_alike((pair(FEW), pair(replace(FEW, splits=2))), SHAPE)


def test_through_pointers_the_tail_is_in_the_last_part() -> None:
    cut = replace(FEW, splits=3)
    assert order_of(cut, 1000) == (320, 640, 1000)
    assert order_of(replace(cut, descriptors=True), 1000) == (384, 768, 1000)


def test_parts_beyond_the_edge_are_empty() -> None:
    assert order_of(replace(FEW, splits=4, descriptors=True), 100) == (64, 100, 100, 100)
    assert order_of(replace(FEW, splits=4), 100) == (64, 64, 64, 100)


@pytest.mark.parametrize(
    ("plan", "text"),
    [
        (Plan(Algorithm.FUSED_GATE_UP, FEW, None, "x"), "a two_launch plan, not fused_gate_up"),
        (
            replace(pair(FEW), gate_up=replace(FEW, descriptors=True, share_tail=True)),
            "no tiles that are streamed or shared out",
        ),
        (replace(pair(FEW), gate_up=STREAMED), "no tiles that are streamed or shared out"),
        (pair(STREAMED), "no tiles that are streamed or shared out"),
        (
            pair(replace(FEW, splits=2)),
            r"add up in one order, but that up to 16777216 rows ends its sums at "
            r"\(\(4096,\), \(7168, 14336\)\), and the first at \(\(4096,\), \(14336,\)\)",
        ),
    ],
    ids=["library", "shared", "streamed gate_up", "streamed down", "parts"],
)
def test_what_could_change_a_rows_bits_is_refused(plan: Plan, text: str) -> None:
    many = replace(pair(replace(FEW, rows=128)), gate_up=MANY)
    check_deterministic(RowPlans((16, MAX_ROWS), (pair(FEW), many)), SHAPE)
    with pytest.raises(ValueError, match=text):
        check_deterministic(RowPlans((16, MAX_ROWS), (pair(FEW), plan)), SHAPE)
