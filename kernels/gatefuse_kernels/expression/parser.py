"""From text to a program, by Python's own parser and a closed grammar: nothing is evaluated by name.

Every syntax node that is not listed here is refused with its column. Arithmetic between constants
is done once, in float64.
"""

import ast
import math
from collections.abc import Collection, Mapping, Sequence

from gatefuse_kernels.errors import ExpressionError
from gatefuse_kernels.expression.constants import LARGEST, check_constants
from gatefuse_kernels.expression.folding import fold
from gatefuse_kernels.expression.graph import StepGraph
from gatefuse_kernels.expression.operations import FUNCTIONS, OPERATIONS, Kind
from gatefuse_kernels.expression.program import Operand, Program
from gatefuse_kernels.expression.source import Source, normalise, statements_of

MAX_DEPTH = 100
"""Nesting of an expression; a chain of additions nests, too."""

MAX_STEPS = 256
"""Operations of a program."""

MAX_TENSORS = 16
"""Inputs, vectors and outputs of a program, together: each occupies registers of every thread."""

_BINARY: dict[type[ast.operator], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.Pow: "pow",
}
_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "lt",
    ast.LtE: "le",
    ast.Gt: "gt",
    ast.GtE: "ge",
    ast.Eq: "eq",
    ast.NotEq: "ne",
}

_Value = Operand | bool
"""An operand, or a truth value that is known."""


def parse_program(
    text: str,
    scalars: Mapping[str, float],
    vectors: Collection[str] = (),
    outputs: Sequence[str] | None = None,
) -> Program:
    """Parse `text`; names that are neither scalars nor vectors nor assigned before are tensor inputs.

    Statements end with a newline or a semicolon. The last one may have no name; its output is y.

    Args:
        text: for example `gelu(x) * scale + residual`, or `t = silu(g); y = t * u`.
        scalars: values of the named scalar constants.
        vectors: names of the per-column constants.
        outputs: names of the outputs; without them, the assigned names that no later line reads.

    Raises:
        ExpressionError: outside the grammar, no tensor input, or over a limit.
    """
    check_constants(scalars, vectors)
    source = normalise(text)
    parser = _Parser(source, scalars, vectors)
    for statement in statements_of(source):
        parser.add(statement)
    return parser.finish(outputs)


class _Parser:
    """Flattens syntax trees into steps."""

    def __init__(
        self, source: Source, scalars: Mapping[str, float], vectors: Collection[str]
    ) -> None:
        self._source = source
        self._scalars = scalars
        self._vectors = vectors
        self._graph = StepGraph()
        self._assigned: dict[str, _Value] = {}
        self._columns: dict[str, int] = {}
        self._unread: dict[str, None] = {}
        self._tensors: dict[str, None] = {}
        self._depth = 0
        self._ended = False

    def add(self, statement: ast.stmt) -> None:
        """Take in one statement."""
        if self._ended:
            raise self._refuse(statement, "only the last statement may have no name")
        if isinstance(statement, ast.Expr):
            self._ended = True
            name = "y"
            if name in self._assigned:
                raise self._refuse(statement, "an unnamed result is y, and y is assigned already")
        elif isinstance(statement, ast.Assign):
            name = self._target(statement)
        else:
            raise self._refuse(statement, f"{type(statement).__name__} is not allowed")
        value = self._visit(statement.value)
        if name in self._tensors and not self._ended:
            raise self._refuse(statement, f"{name} is an input already; use another name")
        self._assigned[name] = value
        self._columns[name] = statement.value.col_offset
        self._unread[name] = None

    def finish(self, outputs: Sequence[str] | None) -> Program:
        """The program of all statements."""
        names = tuple(self._unread) if outputs is None else tuple(outputs)
        self._check_outputs(names)
        steps, results = self._graph.needed_for([self._result(name) for name in names])
        used = dict.fromkeys(
            each
            for operands in (*(step.operands for step in steps), results)
            for each in operands
            if isinstance(each, str)
        )
        # In order of first use in the text, among those that are needed.
        tensors = [name for name in self._tensors if name in used]
        inputs = tuple(name for name in tensors if name not in self._vectors)
        if not inputs:
            raise self._source.error(0, "uses no tensor input; name one, such as x")
        if len(tensors) + len(names) > MAX_TENSORS:
            raise self._source.error(
                0,
                f"{len(tensors)} inputs and vectors and {len(names)} outputs are more than "
                f"{MAX_TENSORS}",
            )
        vectors = tuple(name for name in tensors if name in self._vectors)
        return Program(self._source.text, inputs, vectors, names, steps, results)

    def _check_outputs(self, names: tuple[str, ...]) -> None:
        if not names or len(set(names)) < len(names):
            raise ExpressionError(f"outputs {list(names)}: name each output once, and at least one")
        for name in names:
            if name not in self._assigned:
                assigned = ", ".join(self._assigned)
                raise ExpressionError(f"output {name!r} is never assigned; assigned are {assigned}")

    def _result(self, name: str) -> Operand:
        value = self._assigned[name]
        if self._kind(value) is Kind.BOOL:
            raise self._source.error(
                self._columns[name],
                f"the output {name} is a truth value; use where(condition, 1, 0)",
            )
        self._check_range(value, self._columns[name])
        return value

    def _target(self, statement: ast.Assign) -> str:
        target = statement.targets[0]
        if len(statement.targets) != 1 or not isinstance(target, ast.Name):
            raise self._refuse(statement, "assign to one name at a time")
        name = target.id
        if name in self._assigned or name in self._tensors:
            raise self._refuse(target, f"{name} has a meaning already; use another name")
        if name in self._scalars or name in self._vectors or name in FUNCTIONS:
            raise self._refuse(target, f"{name} cannot be assigned; use another name")
        self._check_name(target)
        return name

    def _visit(self, node: ast.expr) -> _Value:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._refuse(node, f"nested more than {MAX_DEPTH} deep")
        value = self._value(node)
        self._depth -= 1
        return value

    def _value(self, node: ast.expr) -> _Value:
        match node:
            case ast.Constant():
                return self._number(node)
            case ast.Name():
                return self._name(node)
            case ast.UnaryOp(op=ast.UAdd()):
                return self._visit_number(node.operand)
            case ast.UnaryOp(op=ast.USub()):
                return self._emit(node, "neg", (self._visit_number(node.operand),))
            case ast.BinOp() if type(node.op) in _BINARY:
                operands = (self._visit_number(node.left), self._visit_number(node.right))
                return self._emit(node, _BINARY[type(node.op)], operands)
            case ast.Compare():
                return self._compare(node)
            case ast.Call():
                return self._call(node)
        operator = node.op if isinstance(node, ast.BinOp | ast.UnaryOp | ast.BoolOp) else node
        raise self._refuse(node, f"{type(operator).__name__} is not allowed")

    def _visit_number(self, node: ast.expr) -> _Value:
        return self._of_kind(node, self._visit(node), Kind.NUMBER)

    def _of_kind(self, node: ast.expr, value: _Value, kind: Kind) -> _Value:
        found = self._kind(value)
        if found is not kind:
            hint = ", such as x > 0" if kind is Kind.BOOL else "; use where(condition, 1, 0)"
            raise self._refuse(node, f"a {found.value} stands where a {kind.value} is needed{hint}")
        return value

    def _number(self, node: ast.Constant) -> float:
        if isinstance(node.value, bool) or not isinstance(node.value, int | float):
            raise self._refuse(node, f"{node.value!r} is not a number")
        try:
            value = float(node.value)
        except OverflowError as error:
            raise self._refuse(node, "the constant is not finite") from error
        if not math.isfinite(value):
            raise self._refuse(node, "the constant is not finite")
        return value

    def _name(self, node: ast.Name) -> _Value:
        name = node.id
        if name in FUNCTIONS:
            raise self._refuse(node, f"the function {name} needs an argument")
        if name in self._assigned:
            self._unread.pop(name, None)
            return self._assigned[name]
        if name in self._scalars:
            return float(self._scalars[name])
        self._check_name(node)
        self._tensors.setdefault(name)
        return name

    def _compare(self, node: ast.Compare) -> _Value:
        """A chain `a < b <= c` is `a < b` and `b <= c`; b is computed once, as every equal step is."""
        value: _Value = True
        left = self._visit_number(node.left)
        for operator, right_node in zip(node.ops, node.comparators, strict=True):
            if type(operator) not in _COMPARISONS:
                raise self._refuse(node, f"{type(operator).__name__} is not allowed")
            right = self._visit_number(right_node)
            link = self._emit(node, _COMPARISONS[type(operator)], (left, right))
            value = self._both(node, value, link)
            left = right
        return value

    def _both(self, node: ast.expr, left: _Value, right: _Value) -> _Value:
        if isinstance(left, bool):
            return right if left else False
        if isinstance(right, bool):
            return left if right else False
        return self._emit(node, "and", (left, right))

    def _call(self, node: ast.Call) -> _Value:
        if not isinstance(node.func, ast.Name) or node.func.id not in FUNCTIONS:
            raise self._refuse(node.func, "not a known function")
        name = node.func.id
        kinds = OPERATIONS[name].operands
        is_plain = not node.keywords and not any(isinstance(a, ast.Starred) for a in node.args)
        if len(node.args) != len(kinds) or not is_plain:
            count = ("one argument", "two arguments", "three arguments")[len(kinds) - 1]
            raise self._refuse(node, f"{name} takes exactly {count}")
        values = tuple(
            self._of_kind(each, self._visit(each), kind)
            for each, kind in zip(node.args, kinds, strict=True)
        )
        if name == "where" and isinstance(values[0], bool):
            return values[1] if values[0] else values[2]
        return self._emit(node, name, values)

    def _emit(self, node: ast.expr, op: str, values: tuple[_Value, ...]) -> _Value:
        constants = tuple(each for each in values if isinstance(each, float))
        if len(constants) == len(values):
            try:
                return fold(op, constants)
            except ArithmeticError as error:
                raise self._refuse(node, f"the constant is not finite ({error})") from error
        if op == "pow" and values[1] == 0.0 and isinstance(values[1], float):
            return 1.0
        if op == "pow" and values[1] == 1.0 and isinstance(values[1], float):
            return values[0]
        for each in values:
            self._check_range(each, node.col_offset)
        number = self._graph.add(op, values)
        if number >= MAX_STEPS:
            raise self._refuse(node, f"more than {MAX_STEPS} operations")
        return number

    def _kind(self, value: _Value) -> Kind:
        if isinstance(value, bool):
            return Kind.BOOL
        if isinstance(value, int):
            return OPERATIONS[self._graph.steps[value].op].result
        return Kind.NUMBER

    def _check_range(self, value: _Value, column: int) -> None:
        if isinstance(value, float) and abs(value) >= LARGEST:
            raise self._source.error(column, f"the constant {value:g} is beyond float32")

    def _check_name(self, node: ast.Name) -> None:
        if node.id.startswith("_"):
            raise self._refuse(node, f"the name {node.id} does not start with a letter")

    def _refuse(self, node: ast.expr | ast.stmt, what: str) -> ExpressionError:
        return self._source.error(node.col_offset, what)
