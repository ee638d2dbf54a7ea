"""Tuning a small MLP on a real GPU, to the end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gatefuse_kernels import reference
from gatefuse_kernels.backends import build_mlp
from gatefuse_kernels.ledger import Ledger
from gatefuse_kernels.plan import Tile, read_table
from gatefuse_kernels.shapes import DType, MlpShape
from gatefuse_kernels.tuning.compiling import Compilers, Problem
from gatefuse_kernels.tuning.measuring import GpuStopwatch
from gatefuse_kernels.tuning.run import TuneOptions, tune
from gatefuse_kernels.tuning.stopwatch import Launch
from gatefuse_kernels.weights.random_weights import random_source

pytestmark = [pytest.mark.gpu, pytest.mark.slow]


def test_a_tuned_table_is_used(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    options = TuneOptions(
        shapes=(MlpShape(512, 1024),),
        dtype=DType.BF16,
        rows=(16,),
        output=path,
        jobs=4,
        command=("gatefuse", "tune"),
    )
    said: list[str] = []
    tune(options, said.append)
    [entry] = read_table(path).entries
    assert entry.classes[0].us is not None
    assert entry.deterministic is not None
    assert any(text.startswith("deterministic: ") for text in said)
    weights = random_source(512, 1024, 1, 0).load(0, DType.BF16, torch.device("cuda:0"))
    mlp = build_mlp(
        "fused",
        weights,
        ledger=Ledger(),
        max_rows=16,
        deterministic=True,
        table=read_table(path),
    )
    x = torch.randn(16, 512, device="cuda:0").bfloat16()
    out = torch.full_like(x, torch.nan)
    mlp(x, out)
    assert reference.measure_accuracy(out, x, weights).is_fused_grade


def test_tiles_that_add_up_otherwise_have_other_bits() -> None:
    tile = Tile(16, 64, 64, 4, 3, True)
    other = Tile(64, 64, 128, 4, 3, False)
    with Compilers(0) as compilers:
        problem = Problem(MlpShape(2048, 6144), DType.BF16, "cuda:0")
        stopwatch = GpuStopwatch(problem, compilers, print)
        assert stopwatch.same_bits(Launch.GATE_UP, [tile, other])
        assert stopwatch.same_bits(Launch.DOWN, [tile, other])
        assert stopwatch.same_bits(Launch.DOWN, [replace(tile, splits=2), replace(other, splits=2)])
        assert not stopwatch.same_bits(Launch.DOWN, [tile, replace(tile, splits=2)])
