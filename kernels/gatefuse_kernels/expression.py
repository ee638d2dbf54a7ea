"""A closed grammar for elementwise expressions such as `gelu(x) * scale + 1`. No torch, no eval.

Python's own parser reads the text; every node that is not listed here is refused with its column.
Arithmetic between constants is done once, at parse time.
"""

import ast
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gatefuse_kernels.errors import ExpressionError

__all__ = ["FUNCTIONS", "Expression", "ExpressionError", "Step", "parse_expression"]

FUNCTIONS = ("abs", "exp", "gelu", "gelu_tanh", "relu", "sigmoid", "silu", "tanh")
"""Functions of one argument; `gelu` is the erf form."""

MAX_TEXT = 1000
"""Characters of an expression."""

MAX_DEPTH = 100
"""Nesting of an expression; a chain of additions nests, too."""

_OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
}
_FOLD: dict[str, Callable[[float, float], float]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
}
_ALLOWED = f"numbers, names, + - * /, parentheses and {', '.join(FUNCTIONS)}"

Operand = float | str | int
"""A constant, the name of an input, or the number of the step that made it."""


@dataclass(frozen=True, slots=True)
class Step:
    """One elementwise op on the results of earlier steps."""

    op: str
    operands: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed expression: steps in order of execution, the last one giving the answer."""

    text: str
    inputs: tuple[str, ...]
    steps: tuple[Step, ...]


def parse_expression(text: str, constants: Mapping[str, float]) -> Expression:
    """Parse `text`; names that are not in `constants` are tensor inputs.

    Args:
        text: for example `gelu(x) * scale`.
        constants: values of the named constants.

    Raises:
        ExpressionError: outside the grammar, or not exactly one tensor input.
    """
    if len(text) > MAX_TEXT:
        raise ExpressionError(f"the expression has {len(text)} characters; at most {MAX_TEXT}")
    source = " ".join(text.split())
    _check_constants(constants)
    try:
        tree = ast.parse(source, mode="eval")
    except SyntaxError as error:
        # Text that ends too soon has no offset, or one past the end.
        column = min(error.offset - 1, len(source)) if error.offset else len(source)
        raise _error(source, column, f"syntax error; {_allowed()}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise ExpressionError(f"the expression cannot be parsed; {_allowed()}") from error
    parser = _Parser(source, constants)
    result = parser.visit(tree.body)
    if not parser.inputs:
        raise _error(source, 0, "uses no tensor input; name one, such as x")
    if len(parser.inputs) > 1:
        names = ", ".join(parser.inputs)
        raise _error(
            source,
            parser.inputs[list(parser.inputs)[1]],
            f"uses several tensor inputs ({names}); exactly one is supported, other names must "
            "be constants",
        )
    if isinstance(result, str):
        parser.steps.append(Step("copy", (result,)))
    return Expression(source, tuple(parser.inputs), tuple(parser.steps))


class _Parser:
    """Flattens the syntax tree into steps."""

    def __init__(self, source: str, constants: Mapping[str, float]) -> None:
        self.source = source
        self.constants = constants
        self.inputs: dict[str, int] = {}
        self.steps: list[Step] = []
        self.depth = 0

    def visit(self, node: ast.expr) -> Operand:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self._refuse(node, f"nested more than {MAX_DEPTH} deep")
        operand = self._operand(node)
        self.depth -= 1
        return operand

    def _operand(self, node: ast.expr) -> Operand:
        if isinstance(node, ast.Constant):
            return self._number(node)
        if isinstance(node, ast.Name):
            return self._name(node)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.UAdd | ast.USub):
            return self._sign(node)
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            return self._binary(node, _OPERATORS[type(node.op)])
        if isinstance(node, ast.Call):
            return self._call(node)
        operator = node.op if isinstance(node, ast.BinOp | ast.UnaryOp | ast.BoolOp) else node
        raise self._refuse(node, f"{type(operator).__name__} is not allowed")

    def _number(self, node: ast.Constant) -> float:
        if isinstance(node.value, bool) or not isinstance(node.value, int | float):
            raise self._refuse(node, f"{node.value!r} is not a number")
        value = node.value
        return self._finite(node, lambda: float(value))

    def _name(self, node: ast.Name) -> Operand:
        if node.id in FUNCTIONS:
            raise self._refuse(node, f"the function {node.id} needs an argument")
        if node.id in self.constants:
            return float(self.constants[node.id])
        self.inputs.setdefault(node.id, node.col_offset)
        return node.id

    def _sign(self, node: ast.UnaryOp) -> Operand:
        operand = self.visit(node.operand)
        if isinstance(node.op, ast.UAdd):
            return operand
        return -operand if isinstance(operand, float) else self._emit("neg", operand)

    def _binary(self, node: ast.BinOp, op: str) -> Operand:
        left, right = self.visit(node.left), self.visit(node.right)
        if isinstance(left, float) and isinstance(right, float):
            return self._finite(node, lambda: _FOLD[op](left, right))
        return self._emit(op, left, right)

    def _call(self, node: ast.Call) -> Operand:
        if not isinstance(node.func, ast.Name) or node.func.id not in FUNCTIONS:
            raise self._refuse(node.func, "not a known function")
        if len(node.args) != 1 or node.keywords or isinstance(node.args[0], ast.Starred):
            raise self._refuse(node, f"{node.func.id} takes exactly one argument")
        argument = self.visit(node.args[0])
        if isinstance(argument, float):
            raise self._refuse(node, f"{node.func.id} of a constant: write its value instead")
        return self._emit(node.func.id, argument)

    def _emit(self, op: str, *operands: Operand) -> int:
        self.steps.append(Step(op, operands))
        return len(self.steps) - 1

    def _finite(self, node: ast.expr, compute: Callable[[], float]) -> float:
        try:
            value = compute()
        except (ZeroDivisionError, OverflowError) as error:
            raise self._refuse(node, f"the constant is not finite ({error})") from error
        if not math.isfinite(value):
            raise self._refuse(node, "the constant is not finite")
        return value

    def _refuse(self, node: ast.expr, what: str) -> ExpressionError:
        return _error(self.source, node.col_offset, f"{what}; {_allowed()}")


def _check_constants(constants: Mapping[str, float]) -> None:
    for name, value in constants.items():
        if not name.isidentifier() or name in FUNCTIONS:
            raise ExpressionError(f"constant {name!r}: not a usable name")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ExpressionError(f"constant {name!r}: {value!r} is not a number")
        if not math.isfinite(value):
            raise ExpressionError(f"constant {name!r}: {value!r} is not finite")


def _allowed() -> str:
    return f"allowed are {_ALLOWED}"


def _error(source: str, column: int, message: str) -> ExpressionError:
    return ExpressionError(f"column {column + 1}: {message}\n  {source}\n  {' ' * column}^")
