"""Element types of intermediate results, as torch's own ops give them. No torch."""

from gatefuse_kernels.expression.operations import CASTS, OPERATIONS, Kind
from gatefuse_kernels.expression.program import Operand, Program, Step
from gatefuse_kernels.shapes import DType


def step_types(program: Program, dtype: DType) -> tuple[DType | None, ...]:
    """The type of each step's result where every op is torch's: None for a truth value.

    A cast gives its type; of two types the wider one wins, and of bf16 and fp16 neither: they meet in
    fp32. Constants take the type of what they meet. (The fused form computes in float32 throughout.)

    Args:
        program: from `parse_program`.
        dtype: of inputs and vectors.
    """
    types: list[DType | None] = []

    def type_of(operand: Operand) -> DType | None:
        if isinstance(operand, float):
            return None
        return dtype if isinstance(operand, str) else types[operand]

    def result(step: Step) -> DType | None:
        operation = OPERATIONS[step.op]
        if step.op in CASTS:
            return DType(step.op)
        if operation.result is Kind.BOOL:
            return None
        met = {type_of(each) for each in step.operands} - {None}
        if not met:
            # A selection between two constants.
            return dtype
        return met.pop() if len(met) == 1 else DType.FP32

    for step in program.steps:  # each needs those before it
        types.append(result(step))  # noqa: PERF401
    return tuple(types)
