"""A device that is not the current one."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.cases import call, make_rows, make_weights

from gatefuse_kernels import reference
from gatefuse_kernels.backends import build_mlp
from gatefuse_kernels.ledger import Ledger

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning"),
]


@pytest.mark.parametrize("backend", ["fused", "eager", "compiled", "textbook"])
def test_a_device_that_is_not_current(backend: str) -> None:
    """triton#5205, #2441: "cpu tensor?" on cuda:1; Triton launches on the current device, with no guard."""
    if torch.cuda.device_count() < 2:
        pytest.skip("there is one CUDA device")
    weights = make_weights(256, 688, device="cuda:1")
    with torch.cuda.device(0):
        mlp = build_mlp(backend, weights, ledger=Ledger(), max_rows=8)
        mlp.warm_up()
        x = make_rows(5, weights)
        answer = call(mlp, x)
        assert torch.cuda.current_device() == 0
    truth = reference.mlp_reference(x, weights)
    assert reference.relative_error(answer, truth) < 6e-3
