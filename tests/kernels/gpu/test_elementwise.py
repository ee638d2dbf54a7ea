"""Elementwise programs on a GPU: launches, values at the edges, addresses."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tests.kernels.elementwise.expressions import matrices
from tests.kernels.elementwise.special import SPECIAL_VALUES, assert_same_kinds, unary_programs
from tests.kernels.elementwise.truth import assert_within, intervals
from tests.kernels.gpu.forms import CUDA
from tests.kernels.gpu.watching import compilations, counted, profiled, same_bits

from gatefuse_kernels import dtypes
from gatefuse_kernels.elementwise import build_elementwise
from gatefuse_kernels.elementwise.torch_ops import evaluate
from gatefuse_kernels.expression import Program, parse_program
from gatefuse_kernels.ledger import Ledger
from gatefuse_kernels.shapes import DType

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning"),
]

CHAINS = {
    "x": 1,
    "x * 2 + 3": 2,
    "silu(g) * u": 2,
    "gelu(x) * scale + residual": 3,
    "gelu(x) * v + residual": 3,
    "2 / (1 + exp(-x))": 4,
    "where(0 < x < 1, x ** 2, clamp(x, -1, v))": 6,
    "a = softplus(x); b = v * 2; c = 1": 4,
    "fp32(x) * 2 + fp16(x)": 4,
}
"""Texts and the kernels of their eager form."""


def program_of(text: str) -> Program:
    return parse_program(text, {"scale": 1.7}, ["v"])


def on_device(
    program: Program, shape: tuple[int, int], dtype: DType, seed: int = 0
) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    inputs, vectors = matrices(program, shape, dtypes.to_torch(dtype), seed)
    return [each.to(CUDA) for each in inputs], {
        name: each.to(CUDA) for name, each in vectors.items()
    }


def build(backend: str, program: Program, dtype: DType, **options: Any) -> Any:
    settings: dict[str, Any] = {
        "vectors": {},
        "ledger": Ledger(),
        "device": CUDA,
        "max_rows": 1 << 20,
    } | options
    return build_elementwise(backend, program, dtype=dtype, **settings)


def run(call: Any, program: Program, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    outputs = [torch.full_like(inputs[0], math.nan) for _ in program.outputs]
    call(inputs, outputs)
    return outputs


def assert_right(
    outputs: list[torch.Tensor],
    program: Program,
    inputs: list[torch.Tensor],
    vectors: dict[str, torch.Tensor],
) -> None:
    tensors = dict(zip(program.inputs, inputs, strict=True)) | vectors
    tensors = {name: each.cpu() for name, each in tensors.items()}
    found = intervals(program, tensors, short=inputs[0].dtype is not torch.float32)
    for output, interval, name in zip(outputs, found, program.outputs, strict=True):
        assert_within(output.cpu(), interval, f"{name} of {program.text}")


@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("backend", ["eager", "compiled", "fused"])
@pytest.mark.parametrize("text", CHAINS)
def test_launches_equal_the_profilers(text: str, backend: str, dtype: DType) -> None:
    program, ledger = program_of(text), Ledger()
    inputs, vectors = on_device(program, (64, 4096), dtype)
    call = build(backend, program, dtype, vectors=vectors, ledger=ledger)
    call.warm_up()
    outputs = run(call, program, inputs)
    ledger.drain()
    names = profiled(lambda: call(inputs, outputs))
    assert counted(ledger) == len(names), names
    if backend == "eager":
        # The sum of fp32 and fp16 is fp32: what is wanted in 16 bits is a copy more.
        copies = "fp32" in text and dtype is not DType.FP32
        assert len(names) == CHAINS[text] + copies, names
    if backend == "fused":
        assert names == ["fused_elementwise"]


@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("backend", ["compiled", "fused"])
@pytest.mark.parametrize("text", CHAINS)
@pytest.mark.parametrize("shape", [(1, 1), (3, 683), (5, 4096), (33, 688), (7, 5001)], ids=str)
def test_values_at_odd_sizes(shape: tuple[int, int], text: str, backend: str, dtype: DType) -> None:
    program = program_of(text)
    inputs, vectors = on_device(program, shape, dtype, seed=sum(shape))
    call = build(backend, program, dtype, vectors=vectors)
    assert_right(run(call, program, inputs), program, inputs, vectors)


@pytest.mark.parametrize("dtype", [DType.BF16, DType.FP16])
@pytest.mark.parametrize("text", unary_programs())
def test_every_16_bit_value_through_each_function(text: str, dtype: DType) -> None:
    """Against torch's own kernels in float32, rounded once: NaN, infinities and denormal numbers included."""
    program = parse_program(text, {})
    kind = dtypes.to_torch(dtype)
    x = torch.arange(65_536, device=CUDA).to(torch.int16).view(kind).view(256, 256)
    (expected,) = evaluate(program, {"x": x}, in_float32=True)
    assert isinstance(expected, torch.Tensor)
    (found,) = run(build("fused", program, dtype), program, [x])
    assert_same_kinds(found.cpu(), expected.to(kind).cpu(), text, x.cpu())


@pytest.mark.parametrize("text", unary_programs())
def test_special_values_in_float32(text: str) -> None:
    program = parse_program(text, {})
    x = torch.tensor([SPECIAL_VALUES], device=CUDA)
    (expected,) = evaluate(program, {"x": x}, in_float32=True)
    assert isinstance(expected, torch.Tensor)
    (found,) = run(build("fused", program, DType.FP32), program, [x])
    assert_same_kinds(found.cpu(), expected.cpu(), text, x.cpu())


@pytest.mark.parametrize(
    "text",
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
def test_special_values_of_each_pair(text: str) -> None:
    program = parse_program(text, {})
    values = torch.tensor(SPECIAL_VALUES, device=CUDA)
    x, z = (each.contiguous() for each in torch.meshgrid(values, values, indexing="ij"))
    (expected,) = evaluate(program, {"x": x, "z": z}, in_float32=True)
    assert isinstance(expected, torch.Tensor)
    (found,) = run(build("fused", program, DType.FP32), program, [x, z])
    assert_same_kinds(found.cpu(), expected.cpu(), text, x.cpu(), z.cpu())


def test_erf_gelu_in_bf16_is_right_for_every_value() -> None:
    """The short form against float64: down to answers of 1e-7 not one is rounded the other way."""
    x = torch.arange(65_536, device=CUDA).to(torch.int16).view(torch.bfloat16).view(256, 256)
    program = parse_program("gelu(x)", {})
    (found,) = run(build("fused", program, DType.BF16), program, [x])
    exact = x.double() * torch.special.erfc(-x.double() * math.sqrt(0.5)) / 2
    clear = exact.isfinite() & (exact.abs() > 1e-7)
    wrong = x[clear & (found != exact.to(torch.bfloat16))]
    assert wrong.numel() == 0, wrong


@pytest.mark.parametrize("shift", [1, 2, 4, 8])
@pytest.mark.parametrize("text", ["silu(g) * u", "silu(g) * u * v"])
def test_views_that_start_anywhere(text: str, shift: int) -> None:
    """flashinfer#5013: a wide access where one tensor starts elsewhere faults."""
    program = program_of(text)
    (g, storage), vectors = on_device(program, (5, 1032), DType.BF16)
    u = storage.view(-1)[shift : shift + 4 * 1032].view(4, 1032)
    inputs = [g[:4], u]
    call = build("fused", program, DType.BF16, vectors=vectors)
    assert_right(run(call, program, inputs), program, inputs, vectors)


def test_strided_views_are_refused() -> None:
    program = program_of("x * 2")
    x = torch.zeros(8, 64, device=CUDA)[:, :32]
    with pytest.raises(ValueError, match="contiguous"):
        build("fused", program, DType.FP32)([x], [torch.empty_like(x)])


def test_no_row_count_compiles_after_warm_up() -> None:
    for text in ("gelu(x) * scale + residual", "gelu(x) * v + residual"):
        program = program_of(text)
        inputs, vectors = on_device(program, (64, 4096), DType.BF16)
        call = build("fused", program, DType.BF16, vectors=vectors)
        call.warm_up()
        with compilations() as compiled:
            for rows in (1, 2, 7, 33, 64):
                run(call, program, [each[:rows] for each in inputs])
        assert compiled == []


def test_in_place_and_repeated() -> None:
    program = program_of("silu(g) * u")
    (g, u), _ = on_device(program, (100, 688), DType.BF16)
    call = build("fused", program, DType.BF16)
    (expected,) = run(call, program, [g, u])
    assert all(same_bits(run(call, program, [g, u])[0], expected) for _ in range(5))
    call([g, u], [g])
    assert same_bits(g, expected)


@pytest.mark.parametrize("text", ["gelu(x) * scale + residual", "gelu(x) * v + residual"])
def test_a_row_does_not_depend_on_the_others(text: str) -> None:
    program = program_of(text)
    inputs, vectors = on_device(program, (64, 1032), DType.BF16)
    call = build("fused", program, DType.BF16, vectors=vectors)
    (together,) = run(call, program, inputs)
    for row in (0, 1, 63):
        (alone,) = run(call, program, [each[row : row + 1] for each in inputs])
        assert same_bits(alone[0], together[row])


def test_graph_replays_equal_direct_launches() -> None:
    program = program_of("gelu(x) * v + residual")
    inputs, vectors = on_device(program, (17, 4096), DType.BF16)
    call = build("fused", program, DType.BF16, vectors=vectors)
    call.warm_up()
    (expected,) = run(call, program, inputs)
    out = torch.full_like(expected, math.nan)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call(inputs, [out])
    graph.replay()
    assert same_bits(out, expected)


@pytest.mark.parametrize("backend", ["fused", "eager", "compiled"])
def test_a_device_that_is_not_current(backend: str) -> None:
    """triton#5205: "cpu tensor?" on cuda:1, for a launch goes to the current device."""
    if torch.cuda.device_count() < 2:
        pytest.skip("there is one CUDA device")
    program = program_of("silu(g) * u * v")
    inputs, vectors = on_device(program, (4, 64), DType.FP32)
    inputs = [each.to("cuda:1") for each in inputs]
    vectors = {name: each.to("cuda:1") for name, each in vectors.items()}
    with torch.cuda.device(0):
        call = build(backend, program, DType.FP32, vectors=vectors, device="cuda:1")
        call.warm_up()
        outputs = run(call, program, inputs)
        assert torch.cuda.current_device() == 0
    assert_right(outputs, program, inputs, vectors)
