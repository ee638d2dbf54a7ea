"""Checks of the constants that a configuration names. No torch."""

import math
from collections.abc import Collection, Mapping

from gatefuse_kernels.errors import ExpressionError
from gatefuse_kernels.expression.operations import FUNCTIONS
from gatefuse_kernels.expression.source import ALLOWED

LARGEST = (2 - 2**-24) * 2.0**127
"""From here on a float64 rounds to float32's infinity."""


def check_constants(scalars: Mapping[str, float], vectors: Collection[str]) -> None:
    """Names can be used in expressions and mean one thing; scalars are finite in float32.

    Raises:
        ExpressionError: they do not.
    """
    for name in (*scalars, *vectors):
        is_usable = name.isascii() and name.isidentifier() and not name.startswith("_")
        if not is_usable or name in FUNCTIONS:
            raise ExpressionError(f"constant {name!r}: not a usable name; {ALLOWED}")
        if name in scalars and name in vectors:
            raise ExpressionError(f"constant {name!r} is both a scalar and a vector")
    for name, value in scalars.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ExpressionError(f"constant {name!r}: {value!r} is not a number")
        if not math.isfinite(value) or abs(value) >= LARGEST:
            raise ExpressionError(f"constant {name!r}: {value!r} is not a finite float32")
