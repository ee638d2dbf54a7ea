"""The dimension alphabet and value types: M rows, H hidden, I intermediate. No torch here."""

from dataclasses import dataclass
from enum import StrEnum

MAX_WIDTH = 1 << 20
"""Largest H or I: loop counters along a width stay far inside int32."""

MAX_ROWS = 1 << 24
"""Largest M: row tiles times column tiles of the widest shape still fit an int32 grid."""


class Activation(StrEnum):
    """The gate's nonlinearity. The erf and tanh forms of GELU differ by up to 4.7e-4."""

    SILU = "silu"
    GELU = "gelu"
    """x * 0.5 * (1 + erf(x / sqrt(2)))."""
    GELU_TANH = "gelu_tanh"
    """The tanh approximation (`gelu_new`, `gelu_pytorch_tanh`)."""
    RELU = "relu"
    """max(x, 0), where NaN stays NaN."""


class Rounding(StrEnum):
    """How often `act(gate) * up` rounds to a 16-bit type. In float32 the two differ only in how exp is computed."""

    FP32_EPILOGUE = "fp32_epilogue"
    """Activation and product in float32, one rounding: the smaller error."""
    EAGER_EXACT = "eager_exact"
    """The activation rounded, then the product rounded, as torch's two ops do."""


class DType(StrEnum):
    """Element types of weights and hidden states."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return 4 if self is DType.FP32 else 2


@dataclass(frozen=True, slots=True)
class MlpShape:
    """Widths of one gated MLP: x [M, H], gate and up [I, H], down [H, I].

    Raises:
        ValueError: a width is not an integer in 1..MAX_WIDTH.
    """

    hidden: int
    intermediate: int

    def __post_init__(self) -> None:
        for name, width in (("hidden", self.hidden), ("intermediate", self.intermediate)):
            if isinstance(width, bool) or not isinstance(width, int):
                raise ValueError(f"{name} must be an integer, got {width!r}")
            if not 1 <= width <= MAX_WIDTH:
                raise ValueError(f"{name} must be in 1..{MAX_WIDTH}, got {width}")

    @property
    def weight_elements(self) -> int:
        """Elements of gate, up and down together."""
        return 3 * self.hidden * self.intermediate

    def __str__(self) -> str:
        return f"{self.hidden}x{self.intermediate}"


def parse_shape(text: str) -> MlpShape:
    """The shape that `str` writes as "4096x14336".

    Raises:
        ValueError: the text is not two widths joined by an x.
    """
    hidden, cross, intermediate = text.partition("x")
    if not (cross and hidden.isdecimal() and intermediate.isdecimal()):
        raise ValueError(f"a shape reads HIDDENxINTERMEDIATE, for example 4096x14336, not {text!r}")
    return MlpShape(int(hidden), int(intermediate))


def check_rows(rows: int, max_rows: int) -> None:
    """Raise ValueError unless 0 <= rows <= max_rows."""
    if not 0 <= rows <= max_rows:
        raise ValueError(f"rows must be in 0..{max_rows}, got {rows}")


def check_max_rows(max_rows: int) -> None:
    """Raise ValueError unless 1 <= max_rows <= MAX_ROWS."""
    if not 1 <= max_rows <= MAX_ROWS:
        raise ValueError(f"max_rows must be in 1..{MAX_ROWS}, got {max_rows}")


def row_buckets(max_rows: int) -> tuple[int, ...]:
    """Powers of two below `max_rows`, then `max_rows` itself: the static row counts.

    Raises:
        ValueError: `max_rows` is out of range.
    """
    check_max_rows(max_rows)
    powers = [1 << bit for bit in range(max_rows.bit_length()) if 1 << bit < max_rows]
    return (*powers, max_rows)


def bucket_for(rows: int, buckets: tuple[int, ...]) -> int:
    """The smallest of the ascending `buckets` that holds `rows`.

    Raises:
        ValueError: no bucket is large enough, or `rows` is negative.
    """
    check_rows(rows, buckets[-1])
    return next(bucket for bucket in buckets if bucket >= rows)
