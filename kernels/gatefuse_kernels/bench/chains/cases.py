"""Which chains are measured and what they are held to. Pure: no torch here."""

from dataclasses import dataclass

from gatefuse_kernels.bench.cases import PEER_NOISE, Verdict, judge_copy
from gatefuse_kernels.expression import Program, parse_program
from gatefuse_kernels.shapes import DType

COLUMNS = 16384
"""C of every tensor."""

LENGTH_LIMIT = 1.05
"""Of a shorter chain's time, that a longer one with the same inputs and outputs may take."""

SEVEN_TRIP_GAIN = 2.0
"""What fusion must gain on eager's time where eager takes seven trips and fused three."""

_ALL = tuple(DType)
_ONE_OP = "x * 2"
_TWELVE_OPS = (
    "a = x * 0.5 + 1; b = max(a * a - x, 0) * 0.25; c = abs(b - 2) + x; clamp(c, -3, 3) * 2 - 1"
)


@dataclass(frozen=True, slots=True)
class Chain:
    """One chain and its limits.

    Attributes:
        name: in tables and on the command line.
        text: the program.
        scalars: its constants.
        vectors: names of its per-column constants.
        copy_dtypes: where it must reach `COPY_LIMIT` of a copy's bandwidth. Others are shown, not held.
        eager_gain: the smallest ratio of eager's time to ours, if one was promised.
        shorter: the text of a chain with the same inputs and outputs, whose time it is held to.
    """

    name: str
    text: str
    scalars: tuple[tuple[str, float], ...] = ()
    vectors: tuple[str, ...] = ()
    copy_dtypes: tuple[DType, ...] = ()
    eager_gain: float | None = None
    shorter: str | None = None

    @property
    def program(self) -> Program:
        """Parsed.

        Raises:
            ExpressionError: the text is outside the grammar.
        """
        return parse_program(self.text, dict(self.scalars), self.vectors)


CHAINS = (
    Chain("one_op", _ONE_OP),
    Chain("twelve_ops", _TWELVE_OPS, shorter=_ONE_OP),
    Chain("scale_shift", "x * 2 + 3", copy_dtypes=_ALL),
    Chain("column_scale_shift", "x * w + b", vectors=("w", "b")),
    Chain("silu_gate", "silu(g) * u", copy_dtypes=_ALL),
    Chain("gelu_tanh", "gelu_tanh(x)", copy_dtypes=_ALL),
    Chain(
        "gelu_residual",
        "gelu(x) * scale + residual",
        scalars=(("scale", 0.5),),
        # In 16 bits erf takes more issue slots than the time of so few bytes has.
        copy_dtypes=(DType.FP32,),
        eager_gain=SEVEN_TRIP_GAIN,
    ),
)
"""In the order of the table."""

OWN = "own"
"""The name of a chain from the command line."""


def rows_for(elements: int) -> int:
    """M of tensors `[M, COLUMNS]` of about so many elements."""
    return max(1, elements // COLUMNS)


def judge_copy_of(chain: Chain, dtype: DType, ours_us: float, copy_us: float) -> Verdict | None:
    """Hold our bandwidth to that of a copy of as many bytes; None where nothing was promised."""
    return judge_copy(1 / ours_us, 1 / copy_us) if dtype in chain.copy_dtypes else None


def judge_compiled(ours_us: float, compiled_us: float) -> Verdict:
    """Hold our time to torch.compile's."""
    return Verdict("torch.compile", ours_us / compiled_us, PEER_NOISE)


def judge_eager(chain: Chain, ours_us: float, eager_us: float) -> Verdict | None:
    """Hold our gain on eager; None where nothing was promised."""
    if chain.eager_gain is None:
        return None
    return Verdict("gain on eager", eager_us / ours_us, chain.eager_gain, True)


def judge_length(ours_us: float, shorter_us: float) -> Verdict:
    """Hold our time to that of a shorter chain."""
    return Verdict("shorter chain", ours_us / shorter_us, LENGTH_LIMIT)


def judge_launches(launches: int) -> Verdict:
    """A chain is one launch."""
    return Verdict("launches", launches, 1)
