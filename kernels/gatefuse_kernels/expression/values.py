"""Operands while a program is parsed: constants folded, kinds and ranges checked, steps collected. No torch."""

import ast
from collections.abc import Sequence

from gatefuse_kernels.expression.constants import LARGEST
from gatefuse_kernels.expression.folding import fold
from gatefuse_kernels.expression.graph import StepGraph
from gatefuse_kernels.expression.operations import OPERATIONS, Kind
from gatefuse_kernels.expression.program import Operand, Step
from gatefuse_kernels.expression.source import Source

MAX_STEPS = 256
"""Operations of a program."""

Value = Operand | bool
"""An operand, or a truth value that is known."""


class Values:
    """Makes values out of values; every refusal points into the source."""

    def __init__(self, source: Source) -> None:
        """Start with no steps."""
        self._source = source
        self._graph = StepGraph()

    def emit(
        self, node: ast.expr, op: str, values: tuple[Value, ...], places: Sequence[ast.expr]
    ) -> Value:
        """The value of `op`: a constant if all operands are, else a step.

        Args:
            node: where the operation stands.
            op: a name of `OPERATIONS`.
            values: its operands.
            places: where each of them stands.

        Raises:
            ExpressionError: a constant is not finite or beyond float32, or there are too many steps.
        """
        constants = tuple(each for each in values if isinstance(each, float))
        if len(constants) == len(values):
            try:
                return fold(op, constants)
            except ArithmeticError as error:
                what = f"the constant is not finite ({error})"
                raise self._source.error(node.col_offset, what) from error
        for each, place in zip(values, places, strict=True):
            self.check_range(each, place.col_offset)
        number = self._graph.add(op, values)
        if number >= MAX_STEPS:
            raise self._source.error(node.col_offset, f"more than {MAX_STEPS} operations")
        return number

    def both(self, node: ast.expr, left: Value, right: Value) -> Value:
        """Whether two conditions hold."""
        if isinstance(left, bool):
            return right if left else False
        if isinstance(right, bool):
            return left if right else False
        return self.emit(node, "and", (left, right), (node, node))

    def of_kind(self, node: ast.expr, value: Value, kind: Kind) -> Value:
        """The value itself. Raises ExpressionError if it is of the other kind."""
        found = self.kind(value)
        if found is not kind:
            hint = ", such as x > 0" if kind is Kind.BOOL else "; use where(condition, 1, 0)"
            what = f"a {found.value} stands where a {kind.value} is needed{hint}"
            raise self._source.error(node.col_offset, what)
        return value

    def kind(self, value: Value) -> Kind:
        """What a value is."""
        if isinstance(value, bool):
            return Kind.BOOL
        if isinstance(value, int):
            return OPERATIONS[self._graph.steps[value].op].result
        return Kind.NUMBER

    def check_range(self, value: Value, column: int) -> None:
        """Raises ExpressionError for a constant that float32 does not hold."""
        if isinstance(value, float) and abs(value) >= LARGEST:
            raise self._source.error(column, "the constant is beyond float32")

    def needed_for(
        self, results: Sequence[Operand]
    ) -> tuple[tuple[Step, ...], tuple[Operand, ...]]:
        """See `StepGraph.needed_for`."""
        return self._graph.needed_for(results)
