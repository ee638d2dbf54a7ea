"""Checks of the constants that a configuration names. No torch."""

import math
import re
from collections.abc import Collection, Iterable, Mapping

from gatefuse_kernels.errors import ExpressionError
from gatefuse_kernels.expression.operations import FUNCTIONS

LARGEST = (2 - 2**-24) * 2.0**127
"""From here on a float64 rounds to float32's infinity."""


def check_constants(scalars: Mapping[str, float], vectors: Collection[str]) -> None:
    """Names can be used in expressions and mean one thing; scalars are finite in float32.

    Raises:
        ExpressionError: they do not.
    """
    for name in (*scalars, *vectors):
        if not (name.isascii() and name.isidentifier()) or name.startswith("_"):
            raise ExpressionError(
                f"constant {name!r}: a name is letters, digits and _, and starts with a letter"
            )
        if name in FUNCTIONS:
            raise ExpressionError(f"constant {name!r}: a function has that name")
        if name in scalars and name in vectors:
            raise ExpressionError(f"constant {name!r} is both a scalar and a vector")
    for name, value in scalars.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ExpressionError(f"constant {name!r}: {value!r} is not a number")
        if not math.isfinite(value) or abs(value) >= LARGEST:
            raise ExpressionError(f"constant {name!r}: {value!r} is not a finite float32")


def check_all_used(text: str, constants: Iterable[str]) -> None:
    """Raises ExpressionError for a constant that the expression does not name."""
    names = names_in(text)
    for constant in constants:
        if constant not in names:
            raise ExpressionError(
                f"constant {constant!r} is not used by the expression; its names are {', '.join(names)}"
            )


def names_in(text: str) -> tuple[str, ...]:
    """The names in an expression, outside its comments, in order, functions left out."""
    code = re.sub(r"#.*", "", text)
    names = dict.fromkeys(re.findall(r"(?<![\w.])[A-Za-z_]\w*", code))
    return tuple(name for name in names if name not in FUNCTIONS)
