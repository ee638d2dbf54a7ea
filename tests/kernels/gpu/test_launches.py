"""Launches counted where they happen, against torch.profiler."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from tests.kernels.cases import make_rows, make_weights
from tests.kernels.gpu.forms import CUDA
from tests.kernels.gpu.watching import counted, profiled

from gatefuse_kernels.backends import build_mlp
from gatefuse_kernels.launch.launches import captured_kernels
from gatefuse_kernels.ledger import Ledger
from gatefuse_kernels.shapes import DType

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning"),
]


@pytest.mark.parametrize("backend", ["fused", "eager", "compiled", "textbook"])
@pytest.mark.parametrize("dtype", [DType.BF16, DType.FP32])
def test_direct_launches_equal_the_profilers(backend: str, dtype: DType) -> None:
    """At bucket and odd row counts; 4096x14336 is where cuBLAS splits its products."""
    weights = make_weights(4096, 14336, dtype, device=CUDA)
    ledger = Ledger()
    mlp = build_mlp(backend, weights, ledger=ledger, max_rows=70)
    mlp.warm_up()
    for rows in (1, 3, 16, 64, 70):
        x = make_rows(rows, weights)
        out = torch.empty_like(x)
        names = profiled(partial(mlp, x, out))
        assert counted(ledger) == len(names), (rows, names)


def test_shared_tiles_before_a_librarys_product() -> None:
    """256 rows of 5120x25600: what is measured is a capture on a stream on which nothing ran before."""
    weights = make_weights(5120, 25600, DType.BF16, device=CUDA)
    ledger = Ledger()
    mlp = build_mlp("fused", weights, ledger=ledger, max_rows=256)
    mlp.warm_up()
    x = make_rows(256, weights)
    out = torch.empty_like(x)
    names = profiled(partial(mlp, x, out))
    assert counted(ledger) == len(names), names


def test_a_row_count_that_warm_up_did_not_see() -> None:
    """Its first call measures, too: by a capture, which must run nothing beside the five ops."""
    weights = make_weights(4096, 14336, device=CUDA)
    ledger = Ledger()
    mlp = build_mlp("eager", weights, ledger=ledger, max_rows=1000)
    mlp.warm_up()
    x = make_rows(777, weights)
    out = torch.empty_like(x)
    names = profiled(lambda: mlp(x, out), lambda: mlp(x, out))
    assert counted(ledger) == len(names), names


def test_a_capture_runs_nothing() -> None:
    x = torch.zeros(8, 8, device=CUDA)

    def work() -> None:
        x.add_(1)

    work()
    captured: list[str] = []
    assert profiled(lambda: captured.extend(captured_kernels(work))) == []
    assert len(captured) == 1
    assert x.eq(1).all()
