"""From text to a program, by Python's own parser and a closed grammar: nothing is evaluated by name.

Every syntax node that is not listed here is refused with its place. Arithmetic between constants
is done once, in float64.
"""

import ast
import math
from collections.abc import Collection, Mapping, Sequence

from gatefuse_kernels.errors import ExpressionError
from gatefuse_kernels.expression.constants import check_constants
from gatefuse_kernels.expression.operations import FUNCTIONS, OPERATIONS, Kind
from gatefuse_kernels.expression.program import Operand, Program
from gatefuse_kernels.expression.source import Source, normalise, statements_of
from gatefuse_kernels.expression.values import Value, Values
from gatefuse_kernels.expression.words import refused_words

MAX_DEPTH = 100
"""Nesting of an expression; a chain such as a + b + c does not nest."""

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
        ExpressionError: outside the grammar, no tensor input, an input or a statement that nothing needs,
            or over a limit.
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
        self._values = Values(source)
        self._assigned: dict[str, Value] = {}
        self._columns: dict[str, int] = {}
        self._unread: dict[str, int] = {}
        self._tensors: dict[str, int] = {}  # and vectors: where each is read first
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
            raise self._outside(statement, refused_words(statement))
        value = self._visit(statement.value)
        if name in self._tensors and not self._ended:
            raise self._refuse(statement, f"{name} is an input already; use another name")
        self._assigned[name] = value
        self._columns[name] = statement.value.col_offset
        self._unread[name] = statement.col_offset

    def finish(self, outputs: Sequence[str] | None) -> Program:
        """The program of all statements."""
        names = tuple(self._unread) if outputs is None else tuple(outputs)
        self._check_outputs(names)
        steps, results = self._values.needed_for([self._result(name) for name in names])
        used = {
            each
            for operands in (*(step.operands for step in steps), results)
            for each in operands
            if isinstance(each, str)
        }
        for name, column in self._tensors.items():
            if name not in used:
                what = f"no output depends on {name}: a condition that is known leaves it out"
                raise self._source.error(column, what)
        inputs = tuple(name for name in self._tensors if name not in self._vectors)
        if not inputs:
            raise self._source.error(0, "uses no tensor input; name one, such as x")
        if len(used) + len(names) > MAX_TENSORS:
            raise self._source.error(
                0,
                f"{len(used)} inputs and vectors and {len(names)} outputs are more than "
                f"{MAX_TENSORS}",
            )
        vectors = tuple(name for name in self._tensors if name in self._vectors)
        return Program(self._source.text, inputs, vectors, names, steps, results)

    def _check_outputs(self, names: tuple[str, ...]) -> None:
        if not names or len(set(names)) < len(names):
            raise ExpressionError(f"outputs {list(names)}: name each output once, and at least one")
        for name in names:
            if name not in self._assigned:
                assigned = ", ".join(self._assigned)
                raise ExpressionError(f"output {name!r} is never assigned; assigned are {assigned}")
        for name, column in self._unread.items():
            if name not in names:
                what = f"{name} is never used: leave it out or name it among the outputs"
                raise self._source.error(column, what)

    def _result(self, name: str) -> Operand:
        value, column = self._assigned[name], self._columns[name]
        if self._values.kind(value) is Kind.BOOL:
            what = f"the output {name} is a truth value; use where(condition, 1, 0)"
            raise self._source.error(column, what)
        self._values.check_range(value, column)
        return value

    def _target(self, statement: ast.Assign) -> str:
        target = statement.targets[0]
        if len(statement.targets) != 1 or not isinstance(target, ast.Name):
            raise self._outside(statement, "assign to one name at a time")
        name = target.id
        if name in self._assigned or name in self._tensors:
            raise self._refuse(target, f"{name} has a meaning already; use another name")
        if name in self._scalars or name in self._vectors or name in FUNCTIONS:
            raise self._refuse(target, f"{name} cannot be assigned; use another name")
        self._check_name(target)
        return name

    def _visit(self, node: ast.expr) -> Value:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._refuse(node, f"nested more than {MAX_DEPTH} deep")
        value = self._value(node)
        self._depth -= 1
        return value

    def _value(self, node: ast.expr) -> Value:
        match node:
            case ast.Constant():
                return self._number(node)
            case ast.Name():
                return self._name(node)
            case ast.UnaryOp(op=ast.UAdd()):
                return self._visit_number(node.operand)
            case ast.UnaryOp(op=ast.USub()):
                operand = self._visit_number(node.operand)
                return self._values.emit(node, "neg", (operand,), (node.operand,))
            case ast.BinOp():
                return self._binary(node)
            case ast.Compare():
                return self._compare(node)
            case ast.Call():
                return self._call(node)
        operator = node.op if isinstance(node, ast.UnaryOp | ast.BoolOp) else node
        raise self._outside(node, refused_words(operator))

    def _visit_number(self, node: ast.expr) -> Value:
        return self._values.of_kind(node, self._visit(node), Kind.NUMBER)

    def _binary(self, node: ast.BinOp) -> Value:
        """A chain `a + b - c` is walked from its first operand on: however long, it is one level."""
        chain = [node]
        while isinstance(chain[-1].left, ast.BinOp):
            chain.append(chain[-1].left)
        for each in chain:
            if type(each.op) not in _BINARY:
                raise self._outside(each, refused_words(each.op))
        value = self._visit_number(chain[-1].left)
        for each in reversed(chain):
            operands = (value, self._visit_number(each.right))
            op = _BINARY[type(each.op)]
            value = self._values.emit(each, op, operands, (each.left, each.right))
        return value

    def _number(self, node: ast.Constant) -> float:
        if isinstance(node.value, bool) or not isinstance(node.value, int | float):
            raise self._outside(node, f"{node.value!r} is not a number")
        try:
            value = float(node.value)
        except OverflowError as error:
            raise self._refuse(node, "the constant is not finite") from error
        if not math.isfinite(value):
            raise self._refuse(node, "the constant is not finite")
        return value

    def _name(self, node: ast.Name) -> Value:
        name = node.id
        if name in FUNCTIONS:
            raise self._refuse(node, f"the function {name} needs an argument")
        if name in self._assigned:
            self._unread.pop(name, None)
            return self._assigned[name]
        if name in self._scalars:
            return float(self._scalars[name])
        self._check_name(node)
        self._tensors.setdefault(name, node.col_offset)
        return name

    def _compare(self, node: ast.Compare) -> Value:
        """A chain `a < b <= c` is `a < b` and `b <= c`; b is computed once, as every equal step is."""
        value: Value = True
        left_node, left = node.left, self._visit_number(node.left)
        for operator, right_node in zip(node.ops, node.comparators, strict=True):
            if type(operator) not in _COMPARISONS:
                raise self._outside(node, refused_words(operator))
            right = self._visit_number(right_node)
            places = (left_node, right_node)
            link = self._values.emit(node, _COMPARISONS[type(operator)], (left, right), places)
            value = self._values.both(node, value, link)
            left_node, left = right_node, right
        return value

    def _call(self, node: ast.Call) -> Value:
        if not isinstance(node.func, ast.Name):
            raise self._outside(node.func, "only a function can be called, by its name")
        name = node.func.id
        if name not in FUNCTIONS:
            raise self._outside(node.func, f"{name} is not a known function")
        kinds = OPERATIONS[name].operands
        is_plain = not node.keywords and not any(isinstance(a, ast.Starred) for a in node.args)
        if len(node.args) != len(kinds) or not is_plain:
            count = ("one argument", "two arguments", "three arguments")[len(kinds) - 1]
            raise self._refuse(node, f"{name} takes exactly {count}")
        values = tuple(
            self._values.of_kind(each, self._visit(each), kind)
            for each, kind in zip(node.args, kinds, strict=True)
        )
        if name == "where" and isinstance(values[0], bool):
            return values[1] if values[0] else values[2]
        return self._values.emit(node, name, values, node.args)

    def _check_name(self, node: ast.Name) -> None:
        if node.id.startswith("_"):
            raise self._refuse(node, f"the name {node.id} does not start with a letter")

    def _refuse(self, node: ast.expr | ast.stmt, what: str) -> ExpressionError:
        return self._source.error(node.col_offset, what)

    def _outside(self, node: ast.expr | ast.stmt, what: str) -> ExpressionError:
        return self._source.outside(node.col_offset, what)
