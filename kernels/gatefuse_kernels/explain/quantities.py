"""Numbers as people write them: 504GB/s, 29TFLOP/s, 100M; and as people read them."""

import math
import re

_SCALES = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BINARY = {f"{prefix}i": 1024**power for power, prefix in enumerate("KMGT", start=1)}
_NUMBER = re.compile(r"(\d+(?:\.\d+)?(?:[eE]\+?\d+)?)\s*([KMGTPk]?i?)")

MOST_ELEMENTS = 1 << 42
"""As many as one launch can cover."""


def parse_bandwidth(text: str) -> float:
    """Bytes per second of "504GB/s"; a bare number is bytes per second.

    Raises:
        ValueError: it is not written so, or is not positive.
    """
    return _parse(text, r"(?:B(?:/s|ps)?)?", "a bandwidth such as 504GB/s")


def parse_flops(text: str) -> float:
    """FLOPs per second of "29TFLOP/s"; a bare number is FLOPs per second.

    Raises:
        ValueError: it is not written so, or is not positive.
    """
    return _parse(text, r"(?:FLOP(?:s|S|/s|S/s|s/s)?)?", "a rate of arithmetic such as 29TFLOP/s")


def parse_elements(text: str) -> int:
    """The count that "100M" says.

    Raises:
        ValueError: it is not written so, is not whole, or is out of 1..MOST_ELEMENTS.
    """
    count = _parse(text, "", "a number of elements such as 100M")
    if count != int(count) or not 1 <= count <= MOST_ELEMENTS:
        raise ValueError(f"elements are a whole number in 1..{MOST_ELEMENTS}, not {text!r}")
    return int(count)


def _parse(text: str, unit: str, example: str) -> float:
    found = re.fullmatch(rf"\s*{_NUMBER.pattern}{unit}\s*", text)
    if found is None:
        raise ValueError(f"expected {example}, got {text!r}")
    prefix = found[2].replace("k", "K")
    scale = _BINARY.get(prefix) or _SCALES.get(prefix)
    value = float(found[1]) * scale if scale else 0.0
    if not 0 < value < float("inf"):
        raise ValueError(f"expected {example}, got {text!r}")
    return value


def scaled(value: float, unit: str) -> str:
    """Three digits and a decimal prefix: "400 MB", "15.2 GB", "29 TFLOP/s"."""
    if not value:
        return f"0 {unit}".rstrip()
    prefix = next((prefix for prefix in reversed(_SCALES) if value >= 0.9995 * _SCALES[prefix]), "")
    return f"{digits(value / _SCALES[prefix])} {prefix}{unit}".rstrip()


def seconds(value: float) -> str:
    """In the unit that reads best: "80.9 µs", "0.794 ms", "1.2 s"."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if value >= 0.1 * size:
            return f"{digits(value / size)} {unit}"
    return f"{digits(value / 1e-6)} µs"


def digits(value: float) -> str:
    """Three significant digits, and all before the point; no exponent and no zeros at the end."""
    if abs(value) >= 99.95:
        return f"{value:.0f}"
    if not value:
        return "0"
    places = 2 - math.floor(math.log10(abs(value)))
    return f"{value:.{places}f}".rstrip("0").rstrip(".")
