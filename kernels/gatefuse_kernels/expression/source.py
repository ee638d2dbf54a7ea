"""The text of an expression, on one line and as it was written, and errors that point into it. No torch."""

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
"""What an error ends with where the grammar was left."""

_STRANGE = re.compile(r"[^A-Za-z0-9_.,;()=<>!+\-*/ ]")
_SHOWN = 120
"""Characters of the source shown around an error."""


@dataclass(frozen=True, slots=True)
class Source:
    """An expression.

    Attributes:
        text: on one line, single spaces, "; " between statements, no comments; what is parsed and shown.
        written: as the user gave it.
        places: for each character of `text`, and for its end, where that is in `written`.
    """

    text: str
    written: str
    places: tuple[int, ...]

    def error(self, column: int, message: str) -> ExpressionError:
        """An error that names the place as the user wrote it, and points at it.

        Args:
            column: of `text`, from 0.
            message: what is wrong there.
        """
        before = self.written[: self.places[column]]
        lines, number = self.written.split("\n"), before.count("\n")
        line, at = lines[number], len(before) - (before.rfind("\n") + 1)
        start = max(0, at - _SHOWN // 2) if len(line) > _SHOWN else 0
        shown = "".join(
            each if each.isprintable() else " " for each in line[start : start + _SHOWN]
        )
        name = f"line {number + 1}, column {at + 1}" if len(lines) > 1 else f"column {at + 1}"
        return ExpressionError(f"{name}: {message}\n  {shown}\n  {' ' * (at - start)}^")

    def outside(self, column: int, message: str) -> ExpressionError:
        """An error where the grammar was left: says what is allowed, too."""
        return self.error(column, f"{message}; {ALLOWED}")


def normalise(text: str) -> Source:
    """One line, single spaces, "; " between statements; a newline inside parentheses is a space.

    What follows a # to the end of its line is a comment.

    Raises:
        ExpressionError: the text is too long, empty, or has a character that no expression has.
    """
    if len(text) > MAX_TEXT:
        raise ExpressionError(f"the expression has {len(text)} characters; at most {MAX_TEXT}")
    written = text.replace("\r\n", " \n").replace("\r", "\n")
    kept: list[tuple[str, int]] = []
    for statement in _split(written):
        if statement and kept:
            kept += ((";", statement[0][1]), (" ", statement[0][1]))
        kept += statement
    end = kept[-1][1] + 1 if kept else 0
    source = Source(
        "".join(character for character, _ in kept), written, (*(place for _, place in kept), end)
    )
    strange = _STRANGE.search(source.text)
    if strange is not None:
        raise source.outside(strange.start(), f"{strange.group()!r} is not allowed")
    if not source.text:
        raise source.error(0, "the expression is empty")
    return source


def _split(text: str) -> list[list[tuple[str, int]]]:
    """The statements, each as its characters with their places, spaces joined and comments left out."""
    statements: list[list[tuple[str, int]]] = [[]]
    depth, in_comment, has_gap = 0, False, False
    for place, character in enumerate(text):
        in_comment = (in_comment or character == "#") and character != "\n"
        ends = character == ";" or (character == "\n" and depth <= 0)
        if in_comment:
            has_gap = True
        elif ends:
            statements.append([])
            has_gap = False
        elif character.isspace():
            has_gap = True
        else:
            depth += (character == "(") - (character == ")")
            if has_gap and statements[-1]:
                statements[-1].append((" ", place - 1))
            has_gap = False
            statements[-1].append((character, place))
    return statements


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
        raise source.outside(column, "syntax error") from error
    except (ValueError, RecursionError, MemoryError, Warning) as error:
        raise source.outside(0, "the expression cannot be parsed") from error
