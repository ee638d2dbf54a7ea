"""What counts, and what is not well."""

from __future__ import annotations

import pytest
from tests.kernels.bench.examples import PEERS, point, report

from gatefuse_kernels.bench.cases import LLAMA_8B
from gatefuse_kernels.bench.results import Invariance


def test_only_peers_that_answered_rightly_count() -> None:
    assert point(16, 84.0).peers_us == {"eager": 100.0, "compiled": 95.0}


def test_verdicts_of_a_point() -> None:
    found = {verdict.line: verdict for verdict in point(16, 84.0, deterministic_us=90.0).verdicts}
    assert set(found) == {"read floor", "fastest peer", "host time", "deterministic"}
    assert found["read floor"].value == pytest.approx(1.05)
    assert not found["read floor"].is_met
    assert found["fastest peer"].value == pytest.approx(84 / 95)
    assert found["deterministic"].value == pytest.approx(90 / 84)


def test_verdicts_where_little_was_promised() -> None:
    nobody = {name: PEERS[name] for name in ("merged", "liger")}
    found = point(4096, 2000.0, deterministic_us=9000.0, peers=nobody).verdicts
    assert [verdict.line for verdict in found] == ["host time"]


def test_bandwidths() -> None:
    (floor,) = report().floors
    assert floor.read_tb_per_s == pytest.approx(4.4)
    assert floor.copy_tb_per_s == pytest.approx(4.0)


def test_a_gate_is_held_to_the_copy() -> None:
    (gate,) = report().gates
    assert gate.verdict.value == pytest.approx(0.94)
    assert not gate.verdict.is_met


def test_problems() -> None:
    assert report(point(1, 84.0)).problems == ()
    varies = Invariance(LLAMA_8B, 1000, 512, 70_000, 3)
    same = Invariance(LLAMA_8B, 1000, 512, 70_000, 0)
    bad = report(point(8, 84.0, is_repeatable=False), invariance=(same, varies))
    assert bad.problems == (
        "4096x14336, 8 rows: the same call gave different bits",
        "4096x14336: 3 of 70000 rows depend on their batch",
    )
