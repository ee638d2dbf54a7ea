"""Numbers as Grafana writes them: by the unit of a panel."""

from __future__ import annotations

# Of the unit ids that the boards use: what stands behind a number.
SUFFIXES = {
    "reqps": " req/s",
    "rowsps": " rows/s",
    "ops": " /s",
    "bytes": "B",
    "Bps": "B/s",
    "flops": "FLOP/s",
    "s": "s",
    "watt": "W",
    "celsius": " °C",
    "short": "",
    "none": "",
}
LARGE = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
SMALL = ((1, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"))
# Shares, and numbers that nobody says with a prefix.
PLAIN_BELOW = 1e4


def written(value: float, unit: str) -> str:
    """The value with its unit: `12.5 ms`, `99.9 %`, `3.1 GB/s`."""
    if unit == "percentunit":
        return f"{_digits(100 * value)} %"
    suffix = SUFFIXES[unit]
    if unit == "s":
        return _scaled(value, SMALL, suffix)
    if unit in ("bytes", "Bps", "flops"):
        return _scaled(value, (*LARGE, (1, "")), suffix)
    if abs(value) >= PLAIN_BELOW:
        return _scaled(value, LARGE, suffix.strip()).rstrip()
    return f"{_digits(value)}{suffix}"


def _scaled(value: float, scales: tuple[tuple[float, str], ...], suffix: str) -> str:
    if value == 0:
        return f"0 {suffix}"
    scale, prefix = next((one for one in scales if abs(value) >= one[0]), scales[-1])
    return f"{_digits(value / scale)} {prefix}{suffix}"


def _digits(value: float) -> str:
    return f"{value:.4g}" if abs(value) < PLAIN_BELOW else f"{value:.0f}"
