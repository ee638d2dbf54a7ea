"""On a GPU: what the ledger counts of a call is what the profiler sees, kernel for kernel."""

from __future__ import annotations

import pytest

from gatefuse_kernels.audit.cases import Case, MlpCase, ProgramCase
from gatefuse_kernels.shapes import Activation, DType, MlpShape

pytestmark = [pytest.mark.gpu, pytest.mark.slow]


def mlp(backend: str) -> MlpCase:
    shape = MlpShape(256, 688)
    return MlpCase(backend, backend, DType.BF16, shape, Activation.SILU, 64, rows=(1, 16, 64))


def program(backend: str, dtype: DType) -> ProgramCase:
    return ProgramCase(
        model=backend,
        backend=backend,
        dtype=dtype,
        text="t = bf16(x) * s; z = where(t > 0, t, v); y = gelu(z) + r",
        scalars=(("s", 0.5),),
        vectors=("v",),
        outputs=("t", "y"),
        columns=1000,
        rows=(1, 77),
    )


CASES: list[Case] = [
    *(mlp(backend) for backend in ("fused", "eager", "compiled", "textbook")),
    *(program(name, dtype) for name in ("fused", "eager", "compiled") for dtype in DType),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.backend}-{case.dtype}")
def test_every_launch_is_counted(case: Case) -> None:
    from gatefuse_kernels.audit.child import ListingLedger, works
    from gatefuse_kernels.audit.profiling import kernels_run

    ledger = ListingLedger()
    for rows, work in works(case, ledger):
        for _ in range(2):
            work()
        ledger.listed.clear()
        with kernels_run() as seen:
            work()
        counted = [launch.kernel for launch in ledger.listed]
        assert seen.total() == len(counted) > 0, (rows, counted, seen)
