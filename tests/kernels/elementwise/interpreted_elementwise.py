"""Generated kernels in Triton's interpreter; `test_interpreter.py` runs this file.

The interpreter cannot do bf16, so fp32 and fp16 stand in, and casts to bf16 are left to other tests.
libdevice's functions are numpy's here: what is checked of `exp` is how it is used.
"""

from __future__ import annotations

import math
import os

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.kernels.elementwise.expressions import SHAPES, matrices, programs
from tests.kernels.elementwise.numpy_functions import replace_libdevice
from tests.kernels.elementwise.special import SPECIAL_VALUES, assert_same_kinds, unary_programs
from tests.kernels.elementwise.truth import assert_within, intervals

from gatefuse_kernels import dtypes
from gatefuse_kernels.elementwise import fused, torch_ops
from gatefuse_kernels.elementwise.call import Setting
from gatefuse_kernels.elementwise.fused import FusedElementwise
from gatefuse_kernels.expression import Program, parse_program
from gatefuse_kernels.ledger import Ledger
from gatefuse_kernels.shapes import DType

assert os.environ.get("TRITON_INTERPRET") == "1", "run through test_interpreter.py"

# The interpreter computes with numpy, which warns where a GPU quietly makes an infinity or NaN.
pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value|divide|underflow) ")

CHAINS = ("x * 2 + 3", "silu(g) * u", "gelu(x) * 1.7 + residual", "gelu_tanh(x)")


@pytest.fixture(autouse=True)
def no_libdevice(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_libdevice(monkeypatch)


def build(
    program: Program, vectors: dict[str, torch.Tensor], dtype: DType, ledger: Ledger | None = None
) -> FusedElementwise:
    setting = Setting(program, vectors, ledger or Ledger(), dtype, torch.device("cpu"), 1 << 20)
    return FusedElementwise(setting)


def run(
    program: Program,
    inputs: list[torch.Tensor],
    vectors: dict[str, torch.Tensor] | None = None,
) -> list[torch.Tensor]:
    """Into NaN; what lies behind each output must stay NaN."""
    rows, columns = inputs[0].shape
    dtype = inputs[0].dtype
    storages = [torch.full((rows * columns + 16,), math.nan, dtype=dtype) for _ in program.outputs]
    outputs = [each[: rows * columns].view(rows, columns) for each in storages]
    build(program, vectors or {}, dtypes.from_torch(dtype))(inputs, outputs)
    assert all(each[rows * columns :].isnan().all() for each in storages)
    return outputs


def assert_right(
    program: Program,
    outputs: list[torch.Tensor],
    inputs: list[torch.Tensor],
    vectors: dict[str, torch.Tensor] | None = None,
) -> None:
    tensors = dict(zip(program.inputs, inputs, strict=True)) | (vectors or {})
    short = inputs[0].dtype is not torch.float32
    for output, interval in zip(outputs, intervals(program, tensors, short=short), strict=True):
        assert_within(output, interval, program.text)


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    program=programs(casts=False),
    shape=st.sampled_from(SHAPES),
    dtype=st.sampled_from((torch.float32, torch.float16)),
    seed=st.integers(0, 99),
)
def test_random_programs(
    program: Program, shape: tuple[int, int], dtype: torch.dtype, seed: int
) -> None:
    inputs, vectors = matrices(program, shape, dtype, seed)
    assert_right(program, run(program, inputs, vectors), inputs, vectors)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize(
    "shape", [(1, 1), (3, 683), (2, 1024), (1, 2048), (1, 4099), (7, 2051)], ids=str
)
@pytest.mark.parametrize("text", CHAINS)
def test_sizes(text: str, shape: tuple[int, int], dtype: torch.dtype) -> None:
    program = parse_program(text, {})
    inputs, _ = matrices(program, shape, dtype, seed=1)
    assert_right(program, run(program, inputs), inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize(
    "shape",
    [(1, 1), (2100, 1), (5, 3), (9, 512), (3, 513), (5, 1032), (4, 1024), (2, 4096)],
    ids=str,
)
def test_sizes_with_vectors(shape: tuple[int, int], dtype: torch.dtype) -> None:
    program = parse_program("y = gelu(x) * v + w; z = v - x; c = w * 2", {}, ["v", "w"])
    inputs, vectors = matrices(program, shape, dtype, seed=2)
    assert_right(program, run(program, inputs, vectors), inputs, vectors)


@pytest.mark.parametrize("shift", range(1, 9))
def test_views_that_start_anywhere(shift: int) -> None:
    """flashinfer#5013: every tensor's own start decides, not the first one's."""
    program = parse_program("silu(g) * u", {})
    (g, storage), _ = matrices(program, (3, 700), torch.float16, seed=3)
    u = storage.view(-1)[shift : shift + 2000].view(2, 1000)
    g = g.view(-1)[:2000].view(2, 1000)
    outputs = run(program, [g, u])
    assert_right(program, outputs, [g, u])


@pytest.mark.parametrize("op", unary_programs())
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_special_values_of_each_function(op: str, dtype: torch.dtype) -> None:
    program = parse_program(op, {})
    if "bf16" in op:
        pytest.skip("the interpreter truncates to bf16")
    x = torch.tensor([SPECIAL_VALUES]).to(dtype)
    (expected,) = torch_ops.evaluate(program, {"x": x}, in_float32=True)
    assert isinstance(expected, torch.Tensor)
    assert_same_kinds(run(program, [x])[0], expected.to(dtype), op, x)


@pytest.mark.parametrize(
    "op",
    [
        "min(x, z)",
        "max(x, z)",
        "clamp(x, z, 1)",
        "x / z",
        "x - z",
        "x ** z",
        "where(x < z, x, z)",
        "where(x != z, 1, 0)",
    ],
)
def test_special_values_of_each_pair(op: str) -> None:
    program = parse_program(op, {})
    values = torch.tensor(SPECIAL_VALUES)
    x, z = (each.contiguous() for each in torch.meshgrid(values, values, indexing="ij"))
    (expected,) = torch_ops.evaluate(program, {"x": x, "z": z}, in_float32=True)
    assert isinstance(expected, torch.Tensor)
    assert_same_kinds(run(program, [x, z])[0], expected, op, x, z)


def test_one_launch_and_its_bytes() -> None:
    ledger = Ledger()
    program = parse_program("gelu(x) * v + residual", {}, ["v"])
    (x, residual), vectors = matrices(program, (5, 37), torch.float32, seed=0)
    call = build(program, vectors, DType.FP32, ledger)
    call([x, residual], [torch.empty_like(x)])
    (entry,) = ledger.drain()
    assert (entry.kernel, entry.launches) == ("fused_elementwise", 1)
    assert entry.read_bytes == 2 * x.nbytes + vectors["v"].nbytes
    assert entry.written_bytes == x.nbytes


@pytest.mark.parametrize("shape", [(0, 64), (4, 0)], ids=str)
def test_nothing_to_do_launches_nothing(shape: tuple[int, int]) -> None:
    ledger = Ledger()
    program = parse_program("x * 2", {})
    call = build(program, {}, DType.FP32, ledger)
    # A launch would now fail.
    call._kernel = None  # type: ignore[assignment]
    call([torch.empty(shape)], [torch.empty(shape)])
    assert ledger.drain() == []


def test_in_place() -> None:
    program = parse_program("silu(g) * u", {})
    (g, u), _ = matrices(program, (5, 700), torch.float32, seed=4)
    before = g.clone()
    build(program, {}, DType.FP32)([g, u], [g])
    assert_right(program, [g], [before, u])


def test_too_many_programs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """triton#7260: a grid past 2^31 is silently not launched."""
    monkeypatch.setattr(fused, "MAX_GRID", 3)
    program = parse_program("x * 2", {})
    x = torch.ones(4, 1024)
    with pytest.raises(ValueError, match="4 programs"):
        build(program, {}, DType.FP32)([x], [torch.empty_like(x)])


def test_offsets_do_not_wrap_at_32_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepSpeed#8590: pid times block. Untouched pages cost no memory; the grid is cut to its end."""
    elements = (1 << 31) + 5000
    storage = torch.empty(elements, dtype=torch.float16)
    storage[-100:] = 3
    source = storage.view(1, -1)
    target = torch.empty(elements, dtype=torch.float16).view(1, -1)
    program = parse_program("x * 2", {})
    call = build(program, {}, DType.FP16)
    last = (elements - 1) // call._tiling.elements

    class OnlyTheLast:
        arg_names = call._kernel.arg_names

        def __getitem__(self, grid: tuple[int, ...]) -> object:
            return _launch_program(call_kernel, grid, last)

    call_kernel = call._kernel
    monkeypatch.setattr(call, "_kernel", OnlyTheLast())
    call([source], [target])
    assert target[0, -100:].eq(6).all()


def _launch_program(kernel: object, grid: tuple[int, ...], program: int) -> object:
    """A launch of one program of the grid, with the number it has in the whole."""
    from triton.runtime import interpreter

    def launch(*arguments: object, **options: object) -> None:
        builder = interpreter.interpreter_builder
        original = builder.create_get_program_id
        builder.create_get_program_id = lambda axis: interpreter.TensorHandle(
            __import__("numpy").array([program], dtype="int32"), interpreter.tl.int32
        )
        try:
            # The interpreter's kernel, for which Triton has no type.
            kernel[(1,)](*arguments, **options)  # type: ignore[index]
        finally:
            builder.create_get_program_id = original

    assert grid[0] > program
    return launch
