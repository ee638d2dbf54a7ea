"""Random programs by the forms that need no compiler, against intervals of what float32 may give."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.kernels.elementwise.expressions import SHAPES, matrices, programs
from tests.kernels.elementwise.truth import assert_within, intervals

from gatefuse_kernels import dtypes
from gatefuse_kernels.elementwise.call import Setting
from gatefuse_kernels.elementwise.cpu import BlockedElementwise
from gatefuse_kernels.elementwise.eager import EagerElementwise
from gatefuse_kernels.elementwise.torch_ops import evaluate
from gatefuse_kernels.expression import Program, Step
from gatefuse_kernels.ledger import Ledger
from gatefuse_kernels.shapes import DType

TYPES = [dtypes.to_torch(each) for each in DType]


@settings(max_examples=60, deadline=None)
@given(
    program=programs(),
    shape=st.sampled_from(SHAPES),
    dtype=st.sampled_from(TYPES),
    seed=st.integers(0, 99),
)
def test_fused_without_a_compiler(
    program: Program, shape: tuple[int, int], dtype: torch.dtype, seed: int
) -> None:
    inputs, vectors = matrices(program, shape, dtype, seed)
    outputs = [torch.full(shape, math.nan, dtype=dtype) for _ in program.outputs]
    setting = Setting(
        program, vectors, Ledger(), dtypes.from_torch(dtype), torch.device("cpu"), shape[0]
    )
    BlockedElementwise(setting)(inputs, outputs)
    tensors = dict(zip(program.inputs, inputs, strict=True)) | vectors
    found = intervals(program, tensors, short=dtype is not torch.float32)
    for output, interval in zip(outputs, found, strict=True):
        assert_within(output, interval, program.text)


def _is_root(step: Step) -> bool:
    return step.op == "pow" and step.operands[1] in (0.5, -0.5)


@settings(max_examples=40, deadline=None)
@given(
    program=programs(),
    shape=st.sampled_from(SHAPES),
    dtype=st.sampled_from(TYPES),
    seed=st.integers(0, 99),
)
def test_eager_is_torchs_own_ops(
    program: Program, shape: tuple[int, int], dtype: torch.dtype, seed: int
) -> None:
    """Op for op in torch's types, whichever of its overloads is called."""
    # In fp16 torch's CPU takes pow, which knows a root of -inf, and elsewhere sqrt, which does not.
    assume(not (dtype is torch.float16 and any(map(_is_root, program.steps))))
    inputs, vectors = matrices(program, shape, dtype, seed)
    outputs = [torch.full(shape, math.nan, dtype=dtype) for _ in program.outputs]
    ledger = Ledger()
    setting = Setting(
        program, vectors, ledger, dtypes.from_torch(dtype), torch.device("cpu"), shape[0]
    )
    EagerElementwise(setting)(inputs, outputs)
    expected = evaluate(program, dict(zip(program.inputs, inputs, strict=True)) | vectors)
    for output, value in zip(outputs, expected, strict=True):
        wanted = torch.as_tensor(value).to(dtype).expand(shape)
        torch.testing.assert_close(output, wanted, rtol=1.6e-2, atol=1e-3, equal_nan=True)
    assert sum(entry.launches for entry in ledger.drain()) >= len(program.steps)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_the_intervals_know_nearly_everything(dtype: torch.dtype) -> None:
    """A property that excuses every element would test nothing."""
    from gatefuse_kernels.expression import parse_program

    program = parse_program("gelu(x) * v + exp(z) / (1 + abs(x)) - log(abs(z) + 1)", {}, ["v"])
    inputs, vectors = matrices(program, (50, 40), dtype, seed=0)
    tensors = dict(zip(program.inputs, inputs, strict=True)) | vectors
    (interval,) = intervals(program, tensors, short=dtype is not torch.float32)
    width = (interval.high - interval.low) / interval.high.abs().clamp_min(1e-3)
    assert interval.unknown.double().mean() < 0.1
    known = width[~interval.unknown & width.isfinite()]
    assert known.quantile(0.9) < (2e-3 if dtype is not torch.float32 else 1e-4)
