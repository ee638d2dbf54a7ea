"""Made-up results that the tests of reports over chains share."""

from __future__ import annotations

from collections.abc import Mapping

from tests.kernels.bench.examples import measured, peer, spread

from gatefuse_kernels.bench.chains.cases import CHAINS, Chain, rows_for
from gatefuse_kernels.bench.chains.results import (
    COMPILED,
    EAGER,
    FUSED,
    ChainReport,
    ChainResult,
    FormTraffic,
    LaunchCheck,
)
from gatefuse_kernels.bench.results import PeerResult
from gatefuse_kernels.shapes import DType


def chain_of(name: str) -> Chain:
    return next(chain for chain in CHAINS if chain.name == name)


def result(
    name: str,
    ours_us: float,
    *,
    dtype: DType = DType.FP32,
    launches: int = 1,
    shorter_us: float | None = None,
    peers: Mapping[str, PeerResult] | None = None,
) -> ChainResult:
    return ChainResult(
        chain=chain_of(name),
        dtype=dtype,
        rows=rows_for(100_000_000),
        ops=3,
        traffic={FUSED: FormTraffic(3, 1_200_000_000), EAGER: FormTraffic(7, 2_800_000_000)},
        ours=measured(ours_us, launches),
        peers={COMPILED: peer(300.0, 1), EAGER: peer(640.0, 3)} if peers is None else peers,
        copies={"torch": spread(290.0), "triton": spread(285.0)},
        shorter=None if shorter_us is None else spread(shorter_us),
    )


def report(
    *results: ChainResult,
    launches: tuple[LaunchCheck, ...] = (),
    not_measured: tuple[str, ...] = (),
) -> ChainReport:
    return ChainReport(
        command="gatefuse bench elementwise --chains gelu_residual",
        facts={"device": "NVIDIA H200", "date": "2026-11-30"},
        results=results,
        launches=launches,
        not_measured=not_measured,
    )
