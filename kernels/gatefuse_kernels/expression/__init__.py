"""Elementwise expressions: a closed grammar, and the programs it gives. No torch, no eval."""

from gatefuse_kernels.errors import ExpressionError
from gatefuse_kernels.expression.constants import check_all_used, names_in
from gatefuse_kernels.expression.operations import CASTS, FUNCTIONS, OPERATIONS, Kind, Operation
from gatefuse_kernels.expression.parser import MAX_DEPTH, MAX_TENSORS, parse_program
from gatefuse_kernels.expression.program import Operand, Program, Step
from gatefuse_kernels.expression.source import MAX_TEXT
from gatefuse_kernels.expression.values import MAX_STEPS

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
    "check_all_used",
    "names_in",
    "parse_program",
]
