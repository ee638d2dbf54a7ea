"""What travels to the process under the counters arrives as it was."""

from __future__ import annotations

import json

import pytest

from gatefuse_kernels import traffic
from gatefuse_kernels.audit.cases import (
    Call,
    Case,
    MlpCase,
    ProgramCase,
    call_of,
    call_to_json,
    case_of,
    case_to_json,
)
from gatefuse_kernels.shapes import Activation, DType, MlpShape

MLP = MlpCase("ffn", "fused", DType.BF16, MlpShape(24, 40), Activation.RELU, 64, True, (1, 64))
PROGRAM = ProgramCase(
    *(
        "chain",
        "eager",
        DType.FP16,
        "t = gelu(x) * s; y = t + v",
        (("s", 0.5),),
        ("v",),
        ("t", "y"),
    ),
    columns=8,
    rows=(3, 5),
)


@pytest.mark.parametrize("case", [MLP, PROGRAM], ids=["mlp", "program"])
def test_a_case(case: Case) -> None:
    assert case_of(json.loads(json.dumps(case_to_json(case)))) == case


def test_a_program_is_parsed_with_its_constants() -> None:
    program = PROGRAM.program
    assert (program.inputs, program.vectors, program.outputs) == (("x",), ("v",), ("t", "y"))


def test_a_call_keeps_its_bytes() -> None:
    call = Call("ffn", "fused", 3, traffic.fused_mlp(MLP.shape, 3, 2))
    found = call_of(json.loads(json.dumps(call_to_json(call))))
    assert [
        (each.kernel, each.read_bytes, each.written_bytes, each.flops) for each in found.counted
    ] == [(each.kernel, each.read_bytes, each.written_bytes, each.flops) for each in call.counted]
