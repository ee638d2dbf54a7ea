"""One entry to every way of computing an MLP: fused, eager, compiled, textbook."""

from typing import Literal, get_args

from gatefuse_kernels.compiled import CompiledMlp
from gatefuse_kernels.eager import EagerMlp
from gatefuse_kernels.errors import BackendUnavailableError
from gatefuse_kernels.ledger import Ledger
from gatefuse_kernels.mlp import Mlp
from gatefuse_kernels.plan import PlanTable
from gatefuse_kernels.shapes import check_max_rows
from gatefuse_kernels.swiglu.cpu import CpuFusedMlp
from gatefuse_kernels.weights.packed import MlpWeights

__all__ = ["BACKENDS", "Backend", "Mlp", "build_mlp"]

Backend = Literal["fused", "eager", "compiled", "textbook", "auto"]
BACKENDS: tuple[str, ...] = get_args(Backend)


def build_mlp(
    backend: str,
    weights: MlpWeights,
    *,
    ledger: Ledger,
    max_rows: int,
    deterministic: bool = False,
    table: PlanTable | None = None,
) -> Mlp:
    """Make an MLP that computes with `weights` where they live.

    Args:
        backend: fused, eager, compiled, textbook, or auto (today: fused).
        weights: the MLP's weights; their device is where it runs.
        ledger: counts each launch.
        max_rows: the largest M of a call.
        deterministic: a row's bits depend on the row and the weights alone: not on M, on the other
            rows, on its place among them. Only fused can promise that.
        table: plans measured on this very GPU, which go before the shipped ones.

    Raises:
        ValueError: the backend is unknown or cannot be deterministic, `max_rows` is out of range,
            or `table` is of another device.
        BackendUnavailableError: the machine lacks what the backend needs.
    """
    check_max_rows(max_rows)
    if backend not in BACKENDS:
        raise ValueError(f"unknown backend {backend!r}; use one of {', '.join(BACKENDS)}")
    if deterministic and backend not in ("fused", "auto"):
        raise ValueError(f"{backend} cannot be deterministic: use backend fused")
    if backend == "eager":
        return EagerMlp(weights, ledger, max_rows)
    if backend == "compiled":
        return CompiledMlp(weights, ledger, max_rows)
    if backend == "textbook":
        if weights.device.type != "cuda":
            raise BackendUnavailableError(
                "the textbook backend is a Triton kernel and needs a GPU: use the backend fused, "
                "eager or compiled"
            )
        from gatefuse_kernels.swiglu.textbook_mlp import TextbookMlp

        return TextbookMlp(weights, ledger, max_rows)
    if weights.device.type == "cuda":
        # Imported here so that a machine without a GPU never loads Triton.
        from gatefuse_kernels.swiglu.fused import FusedMlp

        return FusedMlp(weights, ledger, max_rows, deterministic=deterministic, table=table)
    return CpuFusedMlp(weights, ledger, max_rows, deterministic=deterministic)
