"""Made-up results that the tests of reports share."""

from __future__ import annotations

from collections.abc import Mapping

from gatefuse_kernels.bench.cases import LLAMA_8B
from gatefuse_kernels.bench.results import (
    Floor,
    GateResult,
    Invariance,
    Measured,
    PeerResult,
    Point,
    Report,
    Spread,
    State,
)


def spread(median_us: float) -> Spread:
    return Spread(median_us, median_us - 1, median_us + 2, 200)


def measured(median_us: float, launches: int = 2) -> Measured:
    return Measured(spread(median_us), launches, 2.3e-3)


def peer(median_us: float, launches: int) -> PeerResult:
    return PeerResult(State.OK, measured=measured(median_us, launches))


PEERS: Mapping[str, PeerResult] = {
    "eager": peer(100.0, 6),
    "compiled": peer(95.0, 5),
    "max_autotune": PeerResult(State.NOT_RUN, "not among --autotune-rows"),
    "merged": PeerResult(State.WRONG, "error 1.0e-01", measured(1.0)),
    "flash_swiglu": PeerResult(State.FAILED, "OutOfResources"),
    "liger": PeerResult(State.NOT_INSTALLED),
}


def point(
    rows: int,
    ours_us: float,
    *,
    floor_us: float = 80.0,
    host_us: float = 30.0,
    deterministic_us: float | None = None,
    is_repeatable: bool = True,
    peers: Mapping[str, PeerResult] = PEERS,
) -> Point:
    return Point(
        shape=LLAMA_8B,
        rows=rows,
        floor=spread(floor_us),
        ours=measured(ours_us),
        kernels={"swiglu_gate_up": 1, "swiglu_down": 1},
        is_repeatable=is_repeatable,
        host=spread(host_us),
        deterministic=None if deterministic_us is None else measured(deterministic_us),
        peers=peers,
    )


def report(
    *points: Point, invariance: tuple[Invariance, ...] = (), not_measured: tuple[str, ...] = ()
) -> Report:
    return Report(
        command="gatefuse bench kernels --shapes 4096x14336",
        facts={"device": "NVIDIA H200", "date": "2026-11-30"},
        floors=(Floor(LLAMA_8B, 352_000_000, {"fast": 80.0, "slow": 88.0}, "fast", 176.0),),
        points=points,
        gates=(GateResult("bf16", 99_999_744, spread(150.0), spread(141.0), 1.6e-3),),
        invariance=invariance,
        not_measured=not_measured,
    )
