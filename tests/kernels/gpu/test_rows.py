"""Row counts at the edges: none, one past a grid's limit, the most that there may be."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.cases import call, make_rows, make_weights, noise
from tests.kernels.gpu.forms import CUDA, MAIN, build
from tests.kernels.gpu.right import assert_right
from tests.kernels.gpu.watching import profiled, same_bits

from gatefuse_kernels import gated, reference
from gatefuse_kernels.backends import build_mlp
from gatefuse_kernels.ledger import Ledger
from gatefuse_kernels.shapes import MAX_ROWS, Activation
from gatefuse_kernels.swiglu.gate import launch_gate

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("backend", ["fused", "eager", "compiled", "textbook"])
def test_no_rows_launch_nothing(backend: str) -> None:
    """sglang#23609, #23636: a grid of zero left a sticky error, which the next launch raised."""
    weights = make_weights(256, 688, device=CUDA)
    ledger = Ledger()
    mlp = build_mlp(backend, weights, ledger=ledger, max_rows=4)
    x = make_rows(0, weights)
    assert profiled(lambda: mlp(x, torch.empty_like(x))) == []
    assert ledger.drain() == []
    three = make_rows(3, weights)
    error = reference.relative_error(call(mlp, three), reference.mlp_reference(three, weights))
    assert error < 6e-3


@pytest.mark.parametrize("shape", [(0, 64), (4, 0)], ids=str)
def test_an_empty_gate_launches_nothing(shape: tuple[int, int]) -> None:
    empty = torch.empty(shape, device=CUDA)
    assert profiled(lambda: launch_gate(empty, empty, empty, Activation.SILU)) == []
    torch.cuda.synchronize()


@pytest.mark.parametrize("form", MAIN)
@pytest.mark.parametrize("rows", [65_535, 65_536, 65_537, 4 * 65_537])
def test_more_rows_than_a_grids_second_axis_holds(rows: int, form: str) -> None:
    """vllm#52381, FLA#172, triton#3299: invalid argument at 65,536 tokens."""
    weights = make_weights(64, 96, device=CUDA)
    x = make_rows(rows, weights)
    assert_right(form, call(build(form, weights, rows), x), x, weights)


@pytest.mark.parametrize("rows", [65_535, 65_537, 1 << 20])
def test_more_rows_of_the_gate_than_a_second_axis_holds(rows: int) -> None:
    """In strided form, where rows are an axis of their own."""
    gate, up = noise(rows, 2 * 96, dtype=torch.bfloat16, device=CUDA).chunk(2, dim=1)
    expected = gated(gate.contiguous(), up.contiguous())
    assert same_bits(gated(gate, up), expected)


def test_the_most_rows() -> None:
    """triton#7260: a grid whose product passed 2^31 was silently not launched. This one has 2^18 tiles or more."""
    weights = make_weights(8, 8, device=CUDA)
    x = make_rows(MAX_ROWS, weights)
    answer = call(build("fused", weights, MAX_ROWS), x)
    for part in (slice(0, 1000), slice(MAX_ROWS // 2, MAX_ROWS // 2 + 1000), slice(-1000, None)):
        assert_right("fused", answer[part], x[part], weights, MAX_ROWS)
    assert answer.isfinite().all()
