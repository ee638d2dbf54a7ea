"""Elementwise expressions: a closed grammar, and the programs it gives. No torch, no eval."""

from gatefuse_kernels.errors import ExpressionError
from gatefuse_kernels.expression.operations import CASTS, FUNCTIONS, OPERATIONS, Kind, Operation
from gatefuse_kernels.expression.parser import MAX_DEPTH, MAX_STEPS, MAX_TENSORS, parse_program
from gatefuse_kernels.expression.program import Operand, Program, Step
from gatefuse_kernels.expression.source import MAX_TEXT

__all__ = [
    "CASTS",
    "FUNCTIONS",
    "MAX_DEPTH",
    "MAX_STEPS",
    "MAX_TENSORS",
    "MAX_TEXT",
    "OPERATIONS",
    "ExpressionError",
    "Kind",
    "Operand",
    "Operation",
    "Program",
    "Step",
    "parse_program",
]
