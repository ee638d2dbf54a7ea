"""The elementwise gate in Triton's interpreter; `test_interpreter.py` runs this file.

The interpreter has no libdevice, so `eager_exact` runs here with other functions of the same name:
what is checked is where it rounds. Its bits are checked on a GPU.
"""

from __future__ import annotations

import math
import os

import pytest
import torch
import triton.language as tl

from gatefuse_kernels import reference
from gatefuse_kernels.launch.jit import device
from gatefuse_kernels.shapes import Activation, Rounding
from gatefuse_kernels.swiglu import gate as gate_module
from gatefuse_kernels.swiglu.gate import launch_gate

assert os.environ.get("TRITON_INTERPRET") == "1", "run through test_interpreter.py"

# The interpreter computes with numpy, which warns where a GPU quietly makes an infinity or NaN.
pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value|divide) ")

DTYPES = (torch.float32, torch.float16)


@device
def numpy_exp(value: tl.tensor) -> tl.tensor:
    return tl.exp(value)


@device
def numpy_tanh(value: tl.tensor) -> tl.tensor:
    small = tl.exp(-2.0 * tl.abs(value))
    size = (1.0 - small) / (1.0 + small)
    return tl.where(value < 0, -size, size)


@pytest.fixture(autouse=True)
def no_libdevice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_module, "exp", numpy_exp)
    monkeypatch.setattr(gate_module, "tanh", numpy_tanh)


def noise(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(math.prod(shape))
    return (torch.randn(*shape, generator=generator) * 3).to(dtype)


def truth(
    gate: torch.Tensor, up: torch.Tensor, activation: Activation = Activation.SILU
) -> torch.Tensor:
    return reference.activate(gate.double(), activation) * up.double()


def assert_right(
    out: torch.Tensor,
    gate: torch.Tensor,
    up: torch.Tensor,
    activation: Activation = Activation.SILU,
) -> None:
    # One rounding of the output beside float32's own errors.
    unit = 1e-3 if out.dtype is torch.float16 else 2e-6
    expected = truth(gate, up, activation)
    torch.testing.assert_close(out.double(), expected, rtol=unit, atol=unit, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shape",
    [(1, 1), (3, 7), (5, 101), (2, 1024), (3, 2048), (1, 4099), (9, 688), (7, 2051)],
    ids=str,
)
def test_whole_matrices(shape: tuple[int, int], dtype: torch.dtype) -> None:
    """One long row with one tail, whatever the width; what lies behind the output stays."""
    gate, up = noise(*shape, dtype=dtype), noise(*shape, dtype=dtype) + 1
    rows, width = shape
    storage = torch.full((rows * width + 16,), math.nan, dtype=dtype)
    out = storage[: rows * width].view(shape)
    launch_gate(gate, up, out, Activation.SILU)
    assert_right(out, gate, up)
    assert storage[rows * width :].isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shape", [(3, 8), (11, 101), (9, 100), (4, 688), (3, 2056), (2, 2051)], ids=str
)
def test_halves_of_a_merged_matrix(shape: tuple[int, int], dtype: torch.dtype) -> None:
    """Both operands are views with a row stride of 2I, aligned or not; neither is copied."""
    rows, width = shape
    gate, up = noise(rows, 2 * width, dtype=dtype).chunk(2, dim=1)
    out = torch.full((rows + 1, width), math.nan, dtype=dtype)
    launch_gate(gate, up, out[:rows], Activation.SILU)
    assert_right(out[:rows], gate, up)
    assert out[rows].isnan().all()


@pytest.mark.parametrize("shift", [1, 2, 3, 4, 5])
def test_views_that_start_anywhere(shift: int) -> None:
    """flashinfer#5013: the guard must look at every operand's own start, not at one of them."""
    storage = noise(3 * 5 * 200 + 16, dtype=torch.float16)
    gate = storage[:1000].view(5, 200)
    up = storage[1000 + shift : 2000 + shift].view(5, 200)
    out = torch.full((1000 + shift,), math.nan, dtype=torch.float16)[shift:].view(5, 200)
    launch_gate(gate, up, out, Activation.SILU)
    assert_right(out, gate, up)


def test_rows_padded_to_a_pitch_keep_their_padding() -> None:
    """An output with a row pitch: tails end every row, and nothing lands between rows."""
    gate, up = noise(5, 104)[:, :101], noise(5, 208)[:, 104:205]
    out = torch.full((5, 104), math.nan)
    launch_gate(gate, up, out[:, :101], Activation.SILU)
    assert_right(out[:, :101], gate, up)
    assert out[:, 101:].isnan().all()


def test_one_row_for_all() -> None:
    """An expanded operand has a row stride of 0."""
    gate, up = noise(1, 300).expand(6, 300), noise(6, 300)
    out = torch.full((6, 300), math.nan)
    launch_gate(gate, up, out, Activation.SILU)
    assert_right(out, gate, up)


def test_in_place() -> None:
    gate, up = noise(5, 2 * 300).chunk(2, dim=1)
    before = gate.clone()
    launch_gate(gate, up, gate, Activation.SILU)
    assert_right(gate, before, up)


def test_offsets_do_not_wrap_at_32_bits() -> None:
    """DeepSpeed#8590, NVlabs/Sana#468: int32 row times stride. Untouched pages cost no memory."""
    stride = (1 << 30) + 8
    storage = torch.empty(2 * stride + 64, dtype=torch.float16)
    gate = storage.as_strided((3, 64), (stride, 1))
    gate.copy_(noise(3, 64, dtype=torch.float16))
    up = noise(3, 64, dtype=torch.float16)
    out = torch.full((3, 64), math.nan, dtype=torch.float16)
    launch_gate(gate, up, out, Activation.SILU)
    assert_right(out, gate, up)
    expected = gate.clone()
    launch_gate(expected, up, gate, Activation.SILU)
    assert torch.equal(gate, out)


@pytest.mark.parametrize("shape", [(0, 64), (4, 0)], ids=str)
def test_nothing_to_do_launches_nothing(
    shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate_module, "swiglu_gate", None)
    empty = torch.empty(shape)
    launch_gate(empty, empty, empty, Activation.SILU)


@pytest.mark.parametrize("rounding", Rounding)
@pytest.mark.parametrize("activation", Activation)
@pytest.mark.parametrize("dtype", DTYPES)
def test_activations(dtype: torch.dtype, activation: Activation, rounding: Rounding) -> None:
    gate, up = noise(7, 333, dtype=dtype), noise(7, 333, dtype=dtype) + 1
    out = torch.full_like(gate, math.nan)
    launch_gate(gate, up, out, activation, rounding)
    assert_right(out, gate, up, activation)


@pytest.mark.parametrize("activation", Activation)
def test_the_two_roundings(activation: Activation) -> None:
    """In fp16 `eager_exact` is torch's two ops; `fp32_epilogue` is nearer to the truth."""
    gate, up = noise(20, 500, dtype=torch.float16), noise(20, 500, dtype=torch.float16) + 1
    once, twice = torch.empty_like(gate), torch.empty_like(gate)
    launch_gate(gate, up, once, activation, Rounding.FP32_EPILOGUE)
    launch_gate(gate, up, twice, activation, Rounding.EAGER_EXACT)
    # Of float64: what torch's own gelu of fp16 gives differs from one CPU to another.
    eager = reference.activate(gate.double(), activation).half() * up
    # The functions are not exact: now and then a value rounds the other way, for gelu more often,
    # whose 1 + erf and 1 + tanh cancel.
    is_gelu = activation in (Activation.GELU, Activation.GELU_TANH)
    assert (twice != eager).double().mean() < (0.06 if is_gelu else 0.002)
    expected = truth(gate, up, activation)
    error = reference.relative_error(once, expected)
    assert error <= reference.relative_error(expected.half(), expected) * 1.001
    if activation is not Activation.RELU:
        assert reference.relative_error(twice, expected) > 1.02 * error


@pytest.mark.parametrize("rounding", Rounding)
@pytest.mark.parametrize("activation", Activation)
def test_extremes_are_torchs(activation: Activation, rounding: Rounding) -> None:
    """ds4#498, ninfer#194: exp must not overflow into NaN, nor a fast division flush to zero."""
    values = [-math.inf, -3e38, -1e30, -1e4, -100.0, -88.5, -88.0, -87.5, -20.0, -1.0, -0.0]
    values += [math.nan, 0.0, 1e-40, 1.0, 20.0, 100.0, 1e4, 1e30, 3e38, math.inf]
    gate = torch.tensor([values])
    out = torch.full_like(gate, 7.0)
    launch_gate(gate, torch.ones_like(gate), out, activation, rounding)
    # Of float64: on some CPUs torch's gelu of float32 is oneDNN's, to which that of infinity is NaN.
    expected = reference.activate(gate.double(), activation).float()
    # Relative 1e-5, for the argument of exp is rounded; below the smallest normal float32 no promise.
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1.2e-38, equal_nan=True)


def test_fp16_overflow_is_infinite_as_in_torch() -> None:
    gate, up = torch.full((1, 64), 300.0).half(), torch.full((1, 64), -300.0).half()
    for rounding in Rounding:
        out = torch.empty_like(gate)
        launch_gate(gate, up, out, Activation.SILU, rounding)
        assert out.eq(-math.inf).all()
