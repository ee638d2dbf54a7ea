"""The limits, and who is held to which."""

from __future__ import annotations

import math

import pytest

from gatefuse_kernels.bench import cases
from gatefuse_kernels.bench.cases import LLAMA_8B, LLAMA_70B, QWEN_32B, SMALL, Verdict
from gatefuse_kernels.shapes import MlpShape


def test_what_is_measured() -> None:
    assert [str(shape) for shape in cases.SHAPES] == [
        "4096x14336",
        "8192x28672",
        "5120x25600",
        "2048x6144",
    ]
    assert cases.ROWS == (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


@pytest.mark.parametrize(
    ("shape", "limits"),
    [
        (LLAMA_8B, {1: 1.04, 16: 1.04, 17: 1.08, 32: 1.08, 64: 1.08, 65: None, 8192: None}),
        (LLAMA_70B, {1: 1.02, 64: 1.02, 128: None}),
        (QWEN_32B, {1: 1.04, 64: 1.04, 128: None}),
        (SMALL, {1: 1.15, 16: 1.15, 32: None}),
        (MlpShape(256, 688), {1: None}),
    ],
    ids=str,
)
def test_the_read_floors_limit(shape: MlpShape, limits: dict[int, float | None]) -> None:
    assert {rows: cases.floor_limit(shape, rows) for rows in limits} == limits


def test_the_peers_limit() -> None:
    limits = {64: 1.01, 127: 1.01, 128: 0.97, 512: 0.97, 1024: 0.97, 1025: 1.01, 8192: 1.01}
    assert {rows: cases.peer_limit(rows) for rows in limits} == limits


def test_a_limit_itself_is_good() -> None:
    assert Verdict("", 1.04, 1.04).is_met
    assert not Verdict("", 1.0401, 1.04).is_met
    assert Verdict("", 0.95, 0.95, at_least=True).is_met
    assert not Verdict("", 0.9499, 0.95, at_least=True).is_met


@pytest.mark.parametrize("at_least", [True, False])
def test_no_number_is_not_good(at_least: bool) -> None:
    assert not Verdict("", math.nan, 1.0, at_least).is_met


def test_ratios() -> None:
    assert cases.judge_floor(LLAMA_8B, 1, 88.0, 80.0) == Verdict("read floor", 1.1, 1.04)
    assert cases.judge_floor(LLAMA_8B, 128, 88.0, 80.0) is None
    peers = {"eager": 100.0, "compiled": 80.0, "merged": 90.0}
    assert cases.fastest(peers) == "compiled"
    assert cases.judge_peers(128, 60.0, peers) == Verdict("fastest peer", 0.75, 0.97)
    assert cases.judge_host(40.0).is_met
    assert not cases.judge_host(40.1).is_met
    assert cases.judge_deterministic(64, 110.0, 100.0) == Verdict("deterministic", 1.1, 1.10)
    assert cases.judge_deterministic(65, 110.0, 100.0) is None
    assert cases.judge_copy(95.0, 100.0).is_met
    assert not cases.judge_copy(94.0, 100.0).is_met


def test_no_peer() -> None:
    assert cases.fastest({}) is None
    assert cases.judge_peers(1, 60.0, {}) is None
