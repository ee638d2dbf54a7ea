"""The text of an expression as it is shown, and errors that point into it. No torch."""

import ast
import re
import warnings
from dataclasses import dataclass

from gatefuse_kernels.errors import ExpressionError
from gatefuse_kernels.expression.operations import FUNCTIONS

MAX_TEXT = 4000
"""Characters of an expression."""

ALLOWED = (
    "allowed are numbers, names, + - * / **, comparisons, parentheses, assignments "
    f"(t = silu(g); y = t * u) and {', '.join(FUNCTIONS)}"
)
"""What every error ends with."""

_STRANGE = re.compile(r"[^A-Za-z0-9_.,;()=<>!+\-*/ ]")
_SHOWN = 120
"""Characters of the source shown around an error."""


@dataclass(frozen=True, slots=True)
class Source:
    """An expression on one line."""

    text: str

    def error(self, column: int, message: str) -> ExpressionError:
        """An error that names the column (from 1) and points at it.

        Args:
            column: from 0.
            message: what is wrong there.
        """
        start = max(0, column - _SHOWN // 2) if len(self.text) > _SHOWN else 0
        shown = self.text[start : start + _SHOWN]
        caret = " " * (column - start) + "^"
        return ExpressionError(f"column {column + 1}: {message}; {ALLOWED}\n  {shown}\n  {caret}")


def normalise(text: str) -> Source:
    """One line, single spaces, "; " between statements; a newline inside parentheses is a space.

    Raises:
        ExpressionError: the text is too long, empty, or has a character that no expression has.
    """
    if len(text) > MAX_TEXT:
        raise ExpressionError(f"the expression has {len(text)} characters; at most {MAX_TEXT}")
    statements = (" ".join(each.split()) for each in _split(text))
    source = Source("; ".join(each for each in statements if each))
    strange = _STRANGE.search(source.text)
    if strange is not None:
        raise source.error(strange.start(), f"{strange.group()!a} is not allowed")
    if not source.text:
        raise source.error(0, "the expression is empty")
    return source


def _split(text: str) -> list[str]:
    statements, depth, start = [], 0, 0
    for place, character in enumerate(text):
        if character == "(":
            depth += 1
        elif character == ")":
            depth -= 1
        elif character == ";" or (character in "\r\n" and depth <= 0):
            statements.append(text[start:place])
            start = place + 1
    return [*statements, text[start:]]


def statements_of(source: Source) -> list[ast.stmt]:
    """The syntax trees of the statements; nothing of them is trusted yet.

    Raises:
        ExpressionError: Python's parser refuses the text.
    """
    try:
        with warnings.catch_warnings():
            # Python merely warns of `1if x`; here it is an error like any other.
            warnings.simplefilter("error")
            return ast.parse(source.text).body
    except SyntaxError as error:
        # Text that ends too soon has no offset, or one past the end.
        end = len(source.text)
        column = min(error.offset - 1, end) if error.offset else end
        raise source.error(column, "syntax error") from error
    except (ValueError, RecursionError, MemoryError, Warning) as error:
        raise source.error(0, "the expression cannot be parsed") from error
