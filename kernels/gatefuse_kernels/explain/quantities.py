"""Numbers as people write them: 504GB/s, 29TFLOP/s, 100M; and as people read them."""

import math
import re

_SCALES = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_LARGER = {"E": 10**18, "Z": 10**21, "Y": 10**24}
"""Only shown, never read: E is an exponent's, too."""
_BINARY = {f"{prefix}I": 1024**power for power, prefix in enumerate("KMGT", start=1)}
_NUMBER = r"(\d+(?:\.\d+)?(?:e\+?\d+)?)\s*([KMGTP]?i?)"

MOST_ELEMENTS = 1 << 42
"""As many as one launch can cover."""


def parse_bandwidth(text: str) -> float:
    """Bytes per second of "504GB/s", in upper or lower case.

    Raises:
        ValueError: it is not written so, has no unit, or is not positive.
    """
    return _parse_unit(text, r"(B(?:/s|ps)?)?", "a bandwidth such as 504GB/s")


def parse_flops(text: str) -> float:
    """FLOPs per second of "29TFLOP/s", in upper or lower case.

    Raises:
        ValueError: it is not written so, has no unit, or is not positive.
    """
    return _parse_unit(text, r"(FLOPs?(?:/s)?)?", "a rate of arithmetic such as 29TFLOP/s")


def parse_elements(text: str) -> int:
    """The count that "100M" says.

    Raises:
        ValueError: it is not written so, is not whole, or is out of 1..MOST_ELEMENTS.
    """
    count, _ = _parse(text, "()", "a number of elements such as 100M")
    if count != int(count) or not 1 <= count <= MOST_ELEMENTS:
        raise ValueError(f"elements are a whole number in 1..{MOST_ELEMENTS}, not {text!r}")
    return int(count)


def _parse_unit(text: str, unit: str, example: str) -> float:
    value, has_unit = _parse(text, unit, example)
    if not has_unit:
        # 504 of them a second is hardly what was meant.
        raise ValueError(f"expected {example}, got {text!r}, which has no unit")
    return value


def _parse(text: str, unit: str, example: str) -> tuple[float, bool]:
    """The value, and whether a prefix or a unit follows the number."""
    found = re.fullmatch(rf"\s*{_NUMBER}{unit}\s*", text, re.IGNORECASE | re.ASCII)
    if found is None:
        raise ValueError(f"expected {example}, got {text!r}")
    prefix = found[2].upper()
    scale = _BINARY.get(prefix) or _SCALES.get(prefix)
    value = float(found[1]) * scale if scale else 0.0
    if not 0 < value < float("inf"):
        raise ValueError(f"expected {example}, got {text!r}")
    return value, bool(found[2] or found[3])


def scaled(value: float, unit: str) -> str:
    """Three digits and a decimal prefix: "400 MB", "15.2 GB", "29 TFLOP/s"."""
    if not value:
        return f"0 {unit}".rstrip()
    scales = _SCALES | _LARGER
    prefix = next((prefix for prefix in reversed(scales) if value >= 0.9995 * scales[prefix]), "")
    return f"{digits(value / scales[prefix])} {prefix}{unit}".rstrip()


def seconds(value: float) -> str:
    """In the unit that reads best: "80.9 µs", "0.794 ms", "1.2 s"; nothing below a tenth of a nanosecond."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9)):
        if value >= 0.0999 * size:
            return f"{digits(value / size)} {unit}"
    return "under 0.1 ns" if value else "0 s"


def digits(value: float) -> str:
    """Three significant digits, below a million all before the point; no exponent, no zeros at the end."""
    if abs(value) >= 1e6:
        return f"{float(f'{value:.3g}'):.0f}"
    if abs(value) >= 99.95:
        return f"{value:.0f}"
    if not value:
        return "0"
    places = 2 - math.floor(math.log10(abs(value)))
    return f"{value:.{places}f}".rstrip("0").rstrip(".")
