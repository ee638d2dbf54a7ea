"""Figures as text, for tables."""

NOTHING = "-"
_BYTES = ("B", "KB", "MB", "GB", "TB")


def number(value: float | None) -> str:
    """Returns about three significant digits and no exponent; all digits before the point, four after it at most."""
    if value is None:
        return NOTHING
    magnitude = abs(value)
    if magnitude >= 100:
        return f"{value:.0f}"
    if magnitude >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if magnitude >= 0.1 or not value else f"{value:.4f}"


def size(value: float | None) -> str:
    """Returns bytes with a decimal unit."""
    if value is None:
        return NOTHING
    unit = 0
    while value >= 1000 and unit < len(_BYTES) - 1:
        value /= 1000
        unit += 1
    return f"{number(value)} {_BYTES[unit]}"


def duration(value_s: float | None) -> str:
    """Returns seconds in the unit that fits: µs, ms or s."""
    if value_s is None:
        return NOTHING
    if value_s < 1e-3:
        return f"{number(value_s * 1e6)} µs"
    return f"{number(value_s * 1e3)} ms" if value_s < 1 else f"{number(value_s)} s"


def share(value: float | None) -> str:
    """Returns a ratio as a percentage."""
    return NOTHING if value is None else f"{number(value * 100)} %"
