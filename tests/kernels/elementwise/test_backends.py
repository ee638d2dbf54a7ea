"""The forms at their boundary: values, launches, bytes, refusals."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tests.kernels.elementwise.expressions import matrices
from tests.kernels.elementwise.special import SPECIAL_VALUES, assert_same_kinds, unary_programs
from tests.kernels.elementwise.truth import assert_within, intervals

from gatefuse_kernels import dtypes
from gatefuse_kernels.elementwise import backends, build_elementwise, compiled
from gatefuse_kernels.elementwise.torch_ops import evaluate
from gatefuse_kernels.errors import BackendUnavailableError
from gatefuse_kernels.expression import Program, parse_program
from gatefuse_kernels.ledger import Ledger
from gatefuse_kernels.shapes import DType

CHAINS = {
    "x * 2 + 3": ["mul", "add"],
    "silu(g) * u": ["silu", "mul"],
    "gelu(x) * scale + residual": ["gelu", "mul", "add"],
    "where(0 < x < 1, x ** 2, clamp(x, -1, v))": ["lt", "lt", "and", "pow", "clamp", "where"],
    "a = softplus(x); b = v * 2; c = x": ["softplus", "mul", "copy", "copy"],
}

# torch.compile imports what warns of its own future.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")


def program_of(text: str) -> Program:
    return parse_program(text, {"scale": 1.7}, ["v"])


def build(backend: str, program: Program, dtype: DType, **options: Any) -> Any:
    settings: dict[str, Any] = {
        "vectors": {},
        "ledger": Ledger(),
        "device": "cpu",
        "max_rows": 8,
    } | options
    return build_elementwise(backend, program, dtype=dtype, **settings)


def run(call: Any, program: Program, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    outputs = [torch.full_like(inputs[0], math.nan) for _ in program.outputs]
    call(inputs, outputs)
    return outputs


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")


@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("text", CHAINS)
def test_eager_is_one_kernel_per_op(text: str, dtype: DType) -> None:
    program, ledger = program_of(text), Ledger()
    inputs, vectors = matrices(program, (5, 37), dtypes.to_torch(dtype), seed=0)
    call = build("eager", program, dtype, vectors=vectors, ledger=ledger)
    outputs = run(call, program, inputs)
    expected = evaluate(program, dict(zip(program.inputs, inputs, strict=True)) | vectors)
    for output, value in zip(outputs, expected, strict=True):
        wanted = torch.as_tensor(value).to(output.dtype).expand_as(output)
        torch.testing.assert_close(output, wanted, equal_nan=True)
    counted = {entry.kernel: entry.launches for entry in ledger.drain()}
    assert counted == {f"eager_{op}": CHAINS[text].count(op) for op in CHAINS[text]}
    assert call.padded_rows(5) == 5
    assert call.backend == "eager"


@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("text", CHAINS)
@pytest.mark.usefixtures("no_compiler")
def test_fused_without_a_compiler_is_one_pass(text: str, dtype: DType) -> None:
    """Blocks of rows with vectors, of elements without; 70 x 1031 elements are more than one block."""
    program, ledger = program_of(text), Ledger()
    inputs, vectors = matrices(program, (70, 1031), dtypes.to_torch(dtype), seed=0)
    call = build("auto", program, dtype, vectors=vectors, ledger=ledger, max_rows=70)
    assert "nothing compiled" in call.description
    assert_right(call, program, inputs, vectors)
    (entry,) = ledger.drain()
    assert (entry.kernel, entry.launches) == ("fused_elementwise", 1)
    used = sum(vectors[name].nbytes for name in program.vectors)
    assert entry.read_bytes == sum(each.nbytes for each in inputs) + used
    assert entry.written_bytes == len(program.outputs) * inputs[0].nbytes


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("backend", ["fused", "compiled"])
def test_compiled_loops(backend: str, dtype: DType) -> None:
    """Every operation in one program: one compilation. Casts to 16 bits and back must not be left out."""
    texts = [each for each in unary_programs() if each != "erf(x)"]
    for start in range(0, len(texts), 12):
        part = texts[start : start + 12]
        lines = [f"o{number} = {text}" for number, text in enumerate(part)]
        program = program_of("; ".join([*lines, "p = min(x, z) * v"]))
        inputs, vectors = matrices(program, (7, 130), dtypes.to_torch(dtype), seed=3)
        ledger = Ledger()
        call = build(backend, program, dtype, vectors=vectors, ledger=ledger)
        call.warm_up()
        assert_right(call, program, inputs, vectors)
        assert [entry.launches for entry in ledger.drain()] == [1]
        one_row = [each[:1].contiguous() for each in inputs]
        assert_right(call, program, one_row, vectors)


def assert_right(
    call: Any, program: Program, inputs: list[torch.Tensor], vectors: dict[str, torch.Tensor]
) -> None:
    tensors = dict(zip(program.inputs, inputs, strict=True)) | vectors
    found = intervals(program, tensors, short=inputs[0].dtype is not torch.float32)
    for output, interval, name in zip(
        run(call, program, inputs), found, program.outputs, strict=True
    ):
        assert_within(output, interval, f"{name} of {program.text}")


@pytest.mark.slow
@pytest.mark.parametrize("text", ["gelu(x) * scale + residual", "x * v + w"])
def test_other_row_counts_compile_nothing(text: str) -> None:
    program = parse_program(text, {"scale": 1.7}, ["v", "w"])
    vectors = {name: torch.ones(48) for name in program.vectors}
    call = build("compiled", program, DType.FP32, vectors=vectors, max_rows=64)
    call.warm_up()
    with torch._dynamo.config.patch(error_on_recompile=True):
        for rows in (1, 2, 3, 17, 63, 64):
            inputs, _ = matrices(program, (rows, 48), torch.float32, seed=rows)
            run(call, program, inputs)
            outputs = [torch.empty_like(inputs[0]) for _ in program.outputs]
            with torch.inference_mode():
                call(inputs, outputs)


@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("text", unary_programs())
@pytest.mark.usefixtures("no_compiler")
def test_special_values(text: str, dtype: DType) -> None:
    program = program_of(text)
    x = torch.tensor([SPECIAL_VALUES]).to(dtypes.to_torch(dtype))
    (expected,) = evaluate(program, {"x": x}, in_float32=True)
    assert isinstance(expected, torch.Tensor)
    (found,) = run(build("fused", program, dtype), program, [x])
    assert_same_kinds(found, expected.to(x.dtype), text, x)


def test_compiled_needs_a_compiler(no_compiler: None) -> None:
    assert not compiled.has_cpp_compiler()
    with pytest.raises(BackendUnavailableError, match="C\\+\\+ compiler"):
        build("compiled", program_of("x * 2"), DType.FP32)


@pytest.mark.parametrize("backend", ["eager", "fused"])
@pytest.mark.usefixtures("no_compiler")
def test_empty_batches_launch_nothing(backend: str) -> None:
    ledger = Ledger()
    call = build(backend, program_of("x + 1"), DType.BF16, ledger=ledger)
    for shape in ((0, 5), (3, 0)):
        x = torch.empty(shape, dtype=torch.bfloat16)
        call([x], [torch.empty_like(x)])
    assert ledger.drain() == []


BF16 = torch.bfloat16


@pytest.mark.parametrize(
    ("inputs", "match"),
    [
        ([torch.empty(2, 3)], "x must be torch.bfloat16"),
        ([torch.empty(9, 3, dtype=BF16)], "rows must be in 0..8"),
        ([torch.empty(2, dtype=BF16)], r"x must be \[M, C\]"),
        ([torch.empty(3, 2, dtype=BF16).t()], "contiguous"),
        ([torch.empty(2, 3, dtype=BF16)] * 2, "1 inputs are needed"),
    ],
)
def test_wrong_tensors_are_refused(inputs: list[torch.Tensor], match: str) -> None:
    call = build("eager", program_of("x + 1"), DType.BF16)
    with pytest.raises(ValueError, match=match):
        call(inputs, [torch.empty_like(inputs[0])])


def test_outputs_are_checked() -> None:
    call = build("eager", program_of("x + 1"), DType.FP32, columns=3)
    x = torch.empty(2, 3)
    with pytest.raises(ValueError, match=r"y must be \[2, 3\]"):
        call([x], [torch.empty(3, 3)])
    with pytest.raises(ValueError, match="1 outputs are needed"):
        call([x], [])
    with pytest.raises(ValueError, match=r"\[M, 3\]"):
        call([torch.empty(2, 4)], [torch.empty(2, 4)])


@pytest.mark.parametrize(
    ("vectors", "options", "match"),
    [
        ({}, {}, "the vector v is missing"),
        ({"v": torch.ones(2, 2)}, {}, r"v must be \[C\]"),
        ({"v": torch.ones(3, dtype=torch.float16)}, {}, "v must be torch.float32"),
        ({"v": torch.ones(6)[::2]}, {}, "contiguous"),
        ({"v": torch.ones(3)}, {"columns": 4}, "3 columns, not 4"),
        ({"v": torch.ones(3)}, {"max_rows": 0}, "max_rows"),
    ],
)
def test_vectors_are_checked(
    vectors: dict[str, torch.Tensor], options: dict[str, int], match: str
) -> None:
    with pytest.raises(ValueError, match=match):
        build("eager", program_of("x + v"), DType.FP32, vectors=vectors, **options)


def test_unknown_backends_are_refused() -> None:
    with pytest.raises(ValueError, match="use one of fused"):
        build("numexpr", program_of("x"), DType.FP32)
    assert "auto" in backends.ELEMENTWISE_BACKENDS


def test_what_compiled_loops_approximate_is_left_to_torch() -> None:
    """Inductor's erf answers 0 for 1e-30."""
    call = build("fused", program_of("erf(x)"), DType.FP32)
    assert "nothing compiled" in call.description
    x = torch.tensor([[1e-30, 1e-6]])
    (found,) = run(call, program_of("erf(x)"), [x])
    torch.testing.assert_close(found, torch.erf(x), rtol=1e-6, atol=0)
