"""The elementwise gate: its two roundings against torch's kernels, bit for bit where that is promised."""

from __future__ import annotations

import math

import pytest
import torch
from tests.kernels.cases import make_rows, make_weights, noise
from tests.kernels.gpu.forms import CUDA
from tests.kernels.gpu.watching import bits, compilations, profiled, same_bits

from gatefuse_kernels import Activation, Rounding, gated, reference
from gatefuse_kernels.backends import build_mlp
from gatefuse_kernels.ledger import Ledger
from gatefuse_kernels.swiglu.gate import launch_gate

pytestmark = pytest.mark.gpu

HALVES = (torch.bfloat16, torch.float16)


def every_value(dtype: torch.dtype) -> torch.Tensor:
    """All 65,536 values of a 16-bit type, as a matrix."""
    return torch.arange(65_536, device=CUDA).to(torch.int16).view(dtype).view(256, 256)


def agree(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Where two tensors have the same bits, or are both NaN (which has many)."""
    return (bits(one) == bits(other)) | (one.isnan() & other.isnan())


# The erf of another compiler rounds some value the other way (10 of 65,536 in bf16, 120 in fp16).
@pytest.mark.parametrize("activation", sorted({*Activation} - {Activation.GELU}))
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_eager_exact_is_torchs_bits_for_every_gate(
    dtype: torch.dtype, activation: Activation
) -> None:
    """pytorch#168148: a fused chain that skips the rounding between its ops is not what eager gives."""
    gate = every_value(dtype)
    for seed in range(3):
        up = noise(256, 256, seed=seed, dtype=dtype, device=CUDA) * 10**seed
        answer = gated(gate, up, activation=activation, rounding=Rounding.EAGER_EXACT)
        expected = reference.activate(gate, activation) * up
        different = gate[~agree(answer, expected)]
        assert different.numel() == 0, different[:20]


@pytest.mark.parametrize("activation", Activation)
def test_eager_exact_in_float32(activation: Activation) -> None:
    """The same operations; with another compiler's exp, erf or tanh the last place may differ."""
    gate = noise(1000, 1000, device=CUDA) * 10
    up = noise(1000, 1000, seed=1, device=CUDA)
    answer = gated(gate, up, activation=activation, rounding=Rounding.EAGER_EXACT)
    expected = reference.activate(gate, activation) * up
    # In the tail of gelu 1 + erf cancels, and only the absolute error is small.
    is_gelu = activation in (Activation.GELU, Activation.GELU_TANH)
    torch.testing.assert_close(answer, expected, rtol=3e-7, atol=2e-6 if is_gelu else 1e-30)


@pytest.mark.parametrize("activation", Activation)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_the_default_rounds_once(dtype: torch.dtype, activation: Activation) -> None:
    """TensorRT-LLM#10446: before or after the multiply is a choice, and this is the nearer one."""
    gate, up = noise(512, 2 * 4096, dtype=dtype, device=CUDA).chunk(2, dim=1)
    exact = reference.activate(gate.double(), activation) * up.double()
    once = reference.relative_error(gated(gate, up, activation=activation), exact)
    twice = gated(gate, up, activation=activation, rounding=Rounding.EAGER_EXACT)
    assert once <= 1.001 * reference.relative_error(exact.to(dtype), exact)
    if activation is not Activation.RELU:
        assert reference.relative_error(twice, exact) > 1.02 * once


@pytest.mark.parametrize("activation", Activation)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_the_default_is_right_for_every_gate(dtype: torch.dtype, activation: Activation) -> None:
    """ds4#498, ninfer#194: NaN from an overflowing exp, or zero from a fast division, for very negative gates."""
    gate = every_value(dtype)
    answer = gated(gate, torch.ones_like(gate), activation=activation)
    expected = reference.activate(gate.float(), activation).to(dtype)
    # In the tail of gelu 1 + erf cancels, and only the absolute error is small.
    unit = torch.finfo(dtype).eps
    torch.testing.assert_close(answer, expected, rtol=unit, atol=5e-7, equal_nan=True)


@pytest.mark.parametrize("rounding", Rounding)
def test_fp16_overflow_is_infinite_as_in_torch(rounding: Rounding) -> None:
    """unsloth-zoo#600: silu(g) * u above 65504."""
    gate = torch.full((3, 64), 300.0, dtype=torch.float16, device=CUDA)
    assert gated(gate, -gate, rounding=rounding).eq(-math.inf).all()


@pytest.mark.parametrize("rounding", Rounding)
def test_in_place_and_repeated(rounding: Rounding) -> None:
    gate, up = noise(100, 2 * 688, dtype=torch.bfloat16, device=CUDA).chunk(2, dim=1)
    expected = gated(gate, up, rounding=rounding)
    assert all(same_bits(gated(gate, up, rounding=rounding), expected) for _ in range(5))
    kept = up.clone()
    assert gated(gate, up, rounding=rounding, out=gate) is gate
    assert same_bits(gate, expected)
    assert same_bits(up, kept)


def test_one_launch_and_no_copy() -> None:
    gate, up = noise(512, 2 * 4096, dtype=torch.bfloat16, device=CUDA).chunk(2, dim=1)
    out = torch.empty(512, 4096, dtype=torch.bfloat16, device=CUDA)
    gated(gate, up, out=out)
    assert profiled(lambda: gated(gate, up, out=out)) == ["swiglu_gate"]


def test_no_shape_compiles_what_another_did() -> None:
    """Row counts, widths and strides are arguments: only alignment and the kind of tail are compiled in."""
    both = noise(64, 2 * 4096, dtype=torch.bfloat16, device=CUDA)
    gated(both[:, :2048], both[:, 2048:4096])
    gated(both[:2].contiguous(), both[2:4].contiguous())
    with compilations() as compiled:
        for rows in (1, 2, 7, 33, 64):
            for width in (2048, 2056, 3000, 4096):
                gated(both[:rows, :width], both[:rows, 4096 : 4096 + width])
                gated(both[:rows, :width].contiguous(), both[:rows, :width].contiguous())
    assert compiled == []


def test_a_device_that_is_not_current() -> None:
    """triton#5205: "cpu tensor?" on cuda:1, for a launch goes to the current device."""
    if torch.cuda.device_count() < 2:
        pytest.skip("there is one CUDA device")
    gate = noise(4, 64, device="cuda:1")
    with torch.cuda.device(0):
        answer = gated(gate, gate)
    assert answer.device == gate.device
    torch.testing.assert_close(answer, torch.nn.functional.silu(gate) * gate)


def test_the_gate_between_library_products_is_an_mlp() -> None:
    """Merged gate and up by the library, the gate in eager's rounding, down: eager's answer to the bit.

    As long as the library computes a merged product as it does the two halves; so eager's own
    products are given to the gate here.
    """
    weights = make_weights(256, 688, device=CUDA)
    x = make_rows(33, weights)
    out = torch.empty_like(x)
    build_mlp("eager", weights, ledger=Ledger(), max_rows=33)(x, out)
    gate, up = x @ weights.gate.t(), x @ weights.up.t()
    h = torch.empty_like(gate)
    launch_gate(gate, up, h, weights.activation, Rounding.EAGER_EXACT)
    assert same_bits(h @ weights.down.t(), out)
