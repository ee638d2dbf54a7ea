"""Byte formulas, and the ledger that adds them up."""

from __future__ import annotations

import pytest

from gatefuse_kernels import traffic
from gatefuse_kernels.ledger import Entry, Ledger
from gatefuse_kernels.shapes import MlpShape
from gatefuse_kernels.traffic import KernelTraffic, Transfer

SHAPE = MlpShape(4096, 14336)
GATE_UP = KernelTraffic("gate_up", (Transfer("x", 100),), (Transfer("h", 10),), 7)
DOWN = KernelTraffic("down", (Transfer("h", 50),), (Transfer("out", 5),), 3)


def test_fused_bytes() -> None:
    """(2MH + 2MI + 3HI) e in all, for M=16 and 2-byte elements."""
    launches = traffic.fused_mlp(SHAPE, 16, 2)
    assert len(launches) == 2
    expected = (2 * 16 * 4096 + 2 * 16 * 14336 + 3 * 4096 * 14336) * 2
    assert sum(launch.bytes_moved for launch in launches) == expected
    assert launches[0].written_bytes == 16 * 14336 * 2


def test_eager_moves_more_by_the_unfused_passes() -> None:
    """Gate and up written and read back, and the activation's own round trip."""
    fused = sum(launch.bytes_moved for launch in traffic.fused_mlp(SHAPE, 16, 2))
    eager_launches = traffic.eager_mlp(SHAPE, 16, 2)
    eager = sum(launch.bytes_moved for launch in eager_launches)
    assert len(eager_launches) == 5
    assert eager - fused == (16 * 4096 + 6 * 16 * 14336) * 2


def test_every_form_does_the_same_products() -> None:
    products = 6 * 16 * 4096 * 14336
    for form in (traffic.fused_mlp, traffic.eager_mlp, traffic.compiled_mlp):
        flops = sum(launch.flops for launch in form(SHAPE, 16, 2))
        assert flops == products + 5 * 16 * 14336


def test_counts_add_up_until_drained() -> None:
    ledger = Ledger()
    for launch in (GATE_UP, DOWN, GATE_UP):
        ledger.count(launch)
    assert ledger.drain() == [
        Entry("gate_up", "eager", 2, 200, 20, 14),
        Entry("down", "eager", 1, 50, 5, 3),
    ]
    assert ledger.drain() == []


def test_a_capture_is_not_an_execution() -> None:
    ledger = Ledger()
    with ledger.recording() as recipe:
        ledger.count(GATE_UP)
        ledger.count(DOWN)
        ledger.count(DOWN)
    assert ledger.drain() == []
    assert recipe.launches == 3
    assert recipe.kernels == {"gate_up": 1, "down": 2}
    assert recipe.bytes_moved == 220
    ledger.replay(recipe)
    ledger.replay(recipe)
    ledger.count(GATE_UP)
    assert ledger.drain() == [
        Entry("gate_up", "graph", 2, 200, 20, 14),
        Entry("down", "graph", 4, 200, 20, 12),
        Entry("gate_up", "eager", 1, 100, 10, 7),
    ]


def test_recordings_do_not_nest_and_close_after_an_error() -> None:
    ledger = Ledger()
    with ledger.recording(), pytest.raises(RuntimeError, match="already"), ledger.recording():
        pass
    ledger.count(GATE_UP)
    assert len(ledger.drain()) == 1
