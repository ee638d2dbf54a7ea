"""Arithmetic between constants, and the types of intermediates: both against torch."""

from __future__ import annotations

import pytest
import torch

from gatefuse_kernels import dtypes
from gatefuse_kernels.elementwise.torch_ops import APPLY
from gatefuse_kernels.expression import OPERATIONS, Kind, parse_program
from gatefuse_kernels.expression.folding import fold
from gatefuse_kernels.expression.types import step_types
from gatefuse_kernels.shapes import DType

NUMBERS = [
    name for name, each in OPERATIONS.items() if Kind.BOOL not in (*each.operands, each.result)
]


@pytest.mark.parametrize("op", NUMBERS)
def test_constants_are_computed_as_tensors_are(op: str) -> None:
    for operands in ((0.3, 1.7, 2.5), (3.1, 0.25, 1.5), (25.0, 3.0, 1.0), (1.00390625, 2.0, 4.0)):
        chosen = operands[: len(OPERATIONS[op].operands)]
        tensors = [torch.tensor(each, dtype=torch.float64) for each in chosen]
        expected = APPLY[op](*tensors).double().item()
        assert fold(op, chosen) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("dtype", DType)
def test_types_are_those_that_torch_gives(dtype: DType) -> None:
    program = parse_program(
        "a = fp32(x) * 2; b = bf16(x) + fp16(x); c = where(x > 1, 1, 2) - v; d = min(a, x) + b",
        {},
        ["v"],
    )
    tensors = {name: torch.ones(2, dtype=dtypes.to_torch(dtype)) for name in ("x", "v")}
    steps: list[torch.Tensor] = []
    for step, found in zip(program.steps, step_types(program, dtype), strict=True):
        operands = [
            each
            if isinstance(each, float)
            else tensors[each]
            if isinstance(each, str)
            else steps[each]
            for each in step.operands
        ]
        if step.op == "where":
            operands = [
                torch.as_tensor(each, dtype=tensors["x"].dtype) if isinstance(each, float) else each
                for each in operands
            ]
        steps.append(APPLY[step.op](*operands))
        expected = torch.bool if found is None else dtypes.to_torch(found)
        assert steps[-1].dtype is expected, step
