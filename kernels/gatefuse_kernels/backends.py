"""One entry to every way of computing an MLP: fused, eager, compiled."""

from typing import Literal, get_args

from gatefuse_kernels.compiled import CompiledMlp
from gatefuse_kernels.eager import EagerMlp
from gatefuse_kernels.ledger import Ledger
from gatefuse_kernels.mlp import Mlp
from gatefuse_kernels.packed import MlpWeights
from gatefuse_kernels.shapes import check_max_rows
from gatefuse_kernels.swiglu.cpu import CpuFusedMlp

__all__ = ["BACKENDS", "Backend", "Mlp", "build_mlp"]

Backend = Literal["fused", "eager", "compiled", "auto"]
BACKENDS: tuple[str, ...] = get_args(Backend)


def build_mlp(backend: str, weights: MlpWeights, *, ledger: Ledger, max_rows: int) -> Mlp:
    """Make an MLP that computes with `weights` where they live.

    Args:
        backend: fused, eager, compiled, or auto (today: fused).
        weights: the MLP's weights; their device is where it runs.
        ledger: counts each launch.
        max_rows: the largest M of a call.

    Raises:
        ValueError: the backend is unknown or `max_rows` out of range.
        BackendUnavailableError: the machine lacks what the backend needs.
    """
    check_max_rows(max_rows)
    if backend not in BACKENDS:
        raise ValueError(f"unknown backend {backend!r}; use one of {', '.join(BACKENDS)}")
    if backend == "eager":
        return EagerMlp(weights, ledger, max_rows)
    if backend == "compiled":
        return CompiledMlp(weights, ledger, max_rows)
    if weights.device.type == "cuda":
        # Imported here so that a machine without a GPU never loads Triton.
        from gatefuse_kernels.swiglu.fused import FusedMlp

        return FusedMlp(weights, ledger, max_rows)
    return CpuFusedMlp(weights, ledger, max_rows)
