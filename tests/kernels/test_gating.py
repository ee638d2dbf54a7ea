"""`gated` on the CPU: the two roundings, views without copies, and what is refused."""

from __future__ import annotations

import itertools
import math
import re

import pytest
import torch
from torch.nn import functional

from gatefuse_kernels import Activation, Rounding, dtypes, gated, reference
from gatefuse_kernels.shapes import DType


def noise(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    generator = torch.Generator().manual_seed(math.prod(shape))
    return (torch.randn(*shape, generator=generator) * 3).to(dtype)


@pytest.mark.parametrize("activation", Activation)
@pytest.mark.parametrize("dtype", DType)
def test_eager_exact_is_torchs_two_ops(dtype: DType, activation: Activation) -> None:
    gate, up = noise(5, 2 * 101, dtype=dtypes.to_torch(dtype)).chunk(2, dim=-1)
    answer = gated(gate, up, activation=activation, rounding=Rounding.EAGER_EXACT)
    assert torch.equal(answer, reference.activate(gate, activation) * up)


@pytest.mark.parametrize("activation", Activation)
@pytest.mark.parametrize("dtype", [DType.BF16, DType.FP16])
def test_the_default_rounds_once(dtype: DType, activation: Activation) -> None:
    gate, up = noise(5, 2 * 101, dtype=dtypes.to_torch(dtype)).chunk(2, dim=-1)
    answer = gated(gate, up, activation=activation)
    exact = reference.activate(gate.double(), activation) * up.double()
    rounding_alone = reference.relative_error(exact.to(gate.dtype), exact)
    assert reference.relative_error(answer, exact) <= 1.001 * rounding_alone


def test_any_leading_dimensions_and_no_copies() -> None:
    merged = noise(2, 3, 2 * 40)
    gate, up = merged.chunk(2, dim=-1)
    expected = functional.silu(gate) * up
    for shape in ((2, 3, 40), (1, 6, 40)):
        answer = gated(gate.view(shape), up.view(shape), rounding=Rounding.EAGER_EXACT)
        assert answer.is_contiguous()
        assert torch.equal(answer, expected.view(shape))
    assert torch.equal(gated(gate[0, 0], up[0, 0], rounding=Rounding.EAGER_EXACT), expected[0, 0])


@pytest.mark.parametrize("rounding", Rounding)
def test_out_may_be_an_operand(rounding: Rounding) -> None:
    gate, up = noise(4, 2 * 40).chunk(2, dim=-1)
    expected = gated(gate, up, rounding=rounding)
    kept = up.clone()
    assert gated(gate, up, rounding=rounding, out=gate) is gate
    assert torch.equal(gate, expected)
    assert torch.equal(up, kept)


def rows_of(storage: torch.Tensor, start: int, stride: int, shape: tuple[int, int]) -> torch.Tensor:
    return torch.as_strided(storage, shape, (stride, 1), start)


@pytest.mark.parametrize("shape", [(1, 3), (2, 3), (4, 3), (3, 1)], ids=str)
def test_out_may_overlap_an_operand_only_if_it_is_that_operand(shape: tuple[int, int]) -> None:
    """Every start and stride within a small storage: refused if an element is shared, else right."""
    rows, width = shape
    source = noise(40)
    numbers = torch.arange(40)
    other = noise(*shape)
    out_start = 9
    met = set()
    for out_stride, stride, start in itertools.product(
        (width, 4, 5, 7), (0, 1, 3, 4, 5, 7), range(31)
    ):
        if max(start + (rows - 1) * stride, out_start + (rows - 1) * out_stride) + width > 40:
            continue
        storage = source.clone()
        out = rows_of(storage, out_start, out_stride, shape)
        operand = rows_of(storage, start, stride, shape)
        places = ((out_start, out_stride), (start, stride))
        ours, theirs = (rows_of(numbers, *place, shape).flatten().tolist() for place in places)
        is_same, is_apart = ours == theirs, set(ours).isdisjoint(theirs)
        met.add((is_same, is_apart))
        for name, operands in (("gate", (operand, other)), ("up", (other, operand))):
            storage.copy_(source)
            if is_same or is_apart:
                expected = gated(*operands)
                assert torch.equal(gated(*operands, out=out), expected)
            else:
                with pytest.raises(ValueError, match=f"out overlaps {name}: it must be {name} its"):
                    gated(*operands, out=out)
                assert torch.equal(storage, source)
    assert met == {(True, False), (False, True), (False, False)}


def test_out_that_is_shifted_against_an_operand_is_refused() -> None:
    storage = noise(9, 40)
    with pytest.raises(ValueError, match="out overlaps gate"):
        gated(storage[1:], storage[1:].clone(), out=storage[:-1])
    with pytest.raises(ValueError, match="out overlaps gate"):
        gated(storage[:-1], storage[1:], out=storage[1:])


@pytest.mark.parametrize("shape", [(0, 8), (3, 0), (2, 0, 8)], ids=str)
def test_empty(shape: tuple[int, ...]) -> None:
    empty = torch.empty(shape)
    assert gated(empty, empty).shape == shape


def test_what_would_need_a_copy_is_refused() -> None:
    good = noise(4, 6)
    for gate, up, out, match in (
        (noise(6, 4).t(), good, None, "last dimension of gate must be dense, its stride is 4"),
        (good, noise(4, 12)[:, ::2], None, "last dimension of up must be dense, its stride is 2"),
        (
            noise(3, 2, 5).transpose(0, 1),
            noise(2, 3, 5),
            None,
            re.escape("rows of gate must be a fixed distance apart, its strides are (5, 10, 1)"),
        ),
        (good, good, noise(1, 6).expand(4, 6), "rows of out overlap"),
    ):
        with pytest.raises(ValueError, match=match):
            gated(gate, up, out=out)


def test_wrong_arguments_are_refused() -> None:
    good = noise(4, 6)
    for gate, up, out, match in (
        (good, noise(4, 7), None, re.escape("up is [4, 7] but gate [4, 6]")),
        (good, good, noise(3, 6), re.escape("out is [3, 6] but gate [4, 6]")),
        (good, good.half(), None, "up must be torch.bfloat16 on cpu, got torch.float16"),
        (good, good.to("meta"), None, "up must be torch.bfloat16 on cpu.*meta"),
        (good.int(), good.int(), None, "int32 is not supported"),
        (good[0, 0], good[0, 0], None, "gate must be .*, got a scalar"),
    ):
        with pytest.raises(ValueError, match=match):
            gated(gate, up, out=out)
