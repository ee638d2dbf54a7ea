"""Wrong answers are found, right ones pass; on the CPU."""

from __future__ import annotations

import math

import pytest
import torch

from gatefuse_kernels import dtypes
from gatefuse_kernels.bench.chains.cases import CHAINS, Chain
from gatefuse_kernels.bench.chains.checks import ChainCheck, exact_values, is_repeatable
from gatefuse_kernels.elementwise.torch_ops import evaluate, store
from gatefuse_kernels.expression import Program, parse_program
from gatefuse_kernels.shapes import DType

ROWS, COLUMNS = 130, 37


def prepare(program: Program, dtype: DType) -> tuple[ChainCheck, list[torch.Tensor]]:
    """The check, and outputs that are right."""
    generator = torch.Generator().manual_seed(0)
    kind = dtypes.to_torch(dtype)
    tensors = {
        name: torch.randn(ROWS, COLUMNS, generator=generator).to(kind) for name in program.inputs
    } | {name: torch.randn(COLUMNS, generator=generator).to(kind) for name in program.vectors}
    outputs = [torch.empty(ROWS, COLUMNS, dtype=kind) for _ in program.outputs]
    store(evaluate(program, tensors, in_float32=True), outputs)
    return ChainCheck(program, tensors, dtype), outputs


@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("chain", CHAINS, ids=lambda chain: chain.name)
def test_right_answers_pass_and_small_mistakes_do_not(chain: Chain, dtype: DType) -> None:
    check, (output,) = prepare(chain.program, dtype)
    assert 0 < check.error([output]) <= check.limit or chain.name == "one_op"
    assert check.limit < 5e-3
    # One of the checked rows, the last one, off by a hundredth.
    output[-1] *= 1.1
    assert check.error([output]) > check.limit


@pytest.mark.parametrize("dtype", [DType.BF16, DType.FP16])
def test_a_second_rounding_shows(dtype: DType) -> None:
    once, (output,) = prepare(parse_program("silu(g) * u", {}), dtype)
    _, (twice,) = prepare(parse_program(f"{dtype}(silu(g)) * u", {}), dtype)
    assert once.error([output]) <= once.limit < once.error([twice])


@pytest.mark.parametrize("row", [0, ROWS - 1])
def test_one_missing_number_in_the_first_or_last_row(row: int) -> None:
    check, (output,) = prepare(parse_program("silu(g) * u", {}), DType.FP32)
    output[row, 3] = math.nan
    assert check.error([output]) == math.inf


def test_the_worst_of_several_outputs_counts() -> None:
    check, outputs = prepare(parse_program("a = x * 2; b = x + 1", {}), DType.FP32)
    assert check.error(outputs) <= check.limit
    assert check.error([outputs[0], outputs[0]]) > check.limit


def test_what_leaves_the_range_is_not_held_against_an_answer() -> None:
    check, (output,) = prepare(parse_program("log(x) * 60000", {}), DType.FP16)
    assert not output.isfinite().all()
    assert check.error([output]) <= check.limit


def test_constants_and_vectors_as_outputs() -> None:
    program = parse_program("a = x * 2; b = w * 2; c = 1", {}, ["w"], ["a", "b", "c"])
    check, outputs = prepare(program, DType.BF16)
    assert check.error(outputs) <= check.limit
    outputs[2].fill_(1.1)
    assert check.error(outputs) > check.limit


def test_casts_round_and_the_rest_does_not() -> None:
    x = torch.tensor([[1.001]], dtype=torch.float32)
    (found,) = exact_values(parse_program("bf16(x) / 3", {}), {"x": x})
    assert isinstance(found, torch.Tensor)
    assert found.item() == 1 / 3


def test_an_element_that_is_never_written_is_found() -> None:
    x, out = torch.randn(5, 7), torch.empty(5, 7)
    assert is_repeatable(lambda: out.copy_(x), [out])
    assert not is_repeatable(lambda: out[:4].copy_(x[:4]), [out])


def test_nan_is_as_repeatable_as_a_number() -> None:
    out = torch.empty(5, 7)
    assert is_repeatable(lambda: out.fill_(math.nan), [out])
