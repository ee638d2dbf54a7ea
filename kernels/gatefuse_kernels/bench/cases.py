"""What is measured and what it is held to. Pure: no torch here."""

from collections.abc import Mapping
from dataclasses import dataclass

from gatefuse_kernels.shapes import MlpShape

LLAMA_8B = MlpShape(4096, 14336)
LLAMA_70B = MlpShape(8192, 28672)
QWEN_32B = MlpShape(5120, 25600)
SMALL = MlpShape(2048, 6144)

SHAPES = (LLAMA_8B, LLAMA_70B, QWEN_32B, SMALL)
ROWS = tuple(1 << bit for bit in range(14))
"""1, 2, 4, ... 8192."""

HOST_LIMIT_US = 40.0
"""Host time of one MLP launched from Python."""

COPY_LIMIT = 0.95
"""Of the copy bandwidth, that the elementwise gate must reach."""

DETERMINISTIC_LIMIT = 1.10
"""Of the default's time, that batch invariance may cost..."""

DETERMINISTIC_ROWS = 64
"""...up to this many rows."""

PEER_NOISE = 1.01
"""Of the fastest peer's time: equal within what two runs differ by."""

PEER_GAIN = 0.97
"""Of the fastest peer's time, where both bytes and FLOPs bind and fusion has most to give..."""

_GAIN_ROWS = range(128, 1024 + 1)
"""...which is here."""

_FLOOR_LIMITS: dict[MlpShape, tuple[tuple[int, float], ...]] = {
    LLAMA_8B: ((16, 1.04), (64, 1.08)),
    LLAMA_70B: ((64, 1.02),),
    QWEN_32B: ((64, 1.04),),
    SMALL: ((16, 1.15),),
}
"""Largest row count and what may be taken there, of one launch that only reads the weights."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One figure beside its limit.

    Attributes:
        line: what is held to it.
        value: the figure.
        limit: the largest that is good, or the smallest if `at_least`.
        at_least: more is better.
    """

    line: str
    value: float
    limit: float
    at_least: bool = False

    @property
    def is_met(self) -> bool:
        """Whether the figure is within its limit; NaN never is."""
        return self.value >= self.limit if self.at_least else self.value <= self.limit


def floor_limit(shape: MlpShape, rows: int) -> float | None:
    """What may be taken of the read floor; None where nothing was promised."""
    steps = _FLOOR_LIMITS.get(shape, ())
    return next((limit for most, limit in steps if rows <= most), None)


def peer_limit(rows: int) -> float:
    """What may be taken of the fastest peer's time."""
    return PEER_GAIN if rows in _GAIN_ROWS else PEER_NOISE


def fastest(peers_us: Mapping[str, float]) -> str | None:
    """The name of the fastest; None if there is none."""
    return min(peers_us, key=lambda name: peers_us[name], default=None)


def judge_floor(shape: MlpShape, rows: int, ours_us: float, floor_us: float) -> Verdict | None:
    """Hold our time to the read floor's; None where nothing was promised."""
    limit = floor_limit(shape, rows)
    return None if limit is None else Verdict("read floor", ours_us / floor_us, limit)


def judge_peers(rows: int, ours_us: float, peers_us: Mapping[str, float]) -> Verdict | None:
    """Hold our time to the fastest peer's; None if no peer ran."""
    name = fastest(peers_us)
    if name is None:
        return None
    return Verdict("fastest peer", ours_us / peers_us[name], peer_limit(rows))


def judge_host(host_us: float) -> Verdict:
    """Hold the host's time for one call to its limit."""
    return Verdict("host time", host_us, HOST_LIMIT_US)


def judge_deterministic(rows: int, deterministic_us: float, ours_us: float) -> Verdict | None:
    """Hold the cost of batch invariance to its limit; None where nothing was promised."""
    if rows > DETERMINISTIC_ROWS:
        return None
    return Verdict("deterministic", deterministic_us / ours_us, DETERMINISTIC_LIMIT)


def judge_copy(gate_bytes_per_us: float, copy_bytes_per_us: float) -> Verdict:
    """Hold the elementwise gate's bandwidth to that of a copy."""
    return Verdict("copy bandwidth", gate_bytes_per_us / copy_bytes_per_us, COPY_LIMIT, True)
