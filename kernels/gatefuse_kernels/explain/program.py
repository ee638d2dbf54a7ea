"""The ways to compute an elementwise program, each launch with its predicted time."""

from gatefuse_kernels.explain.advice import program_advice, program_turning
from gatefuse_kernels.explain.launches import kernels_of
from gatefuse_kernels.explain.results import Explanation, Form, Point
from gatefuse_kernels.explain.roofs import Roofs
from gatefuse_kernels.expression import Program
from gatefuse_kernels.shapes import DType
from gatefuse_kernels.traffic import (
    PROGRAM_BACKENDS,
    KernelTraffic,
    peak_intermediate_bytes,
    program_traffic,
)

_DESCRIPTIONS = {
    "eager": "a torch kernel for each operation, every intermediate in memory",
    "compiled": "torch.compile: one kernel",
    "fused": "one kernel: each input read once, arithmetic in registers, each output written once",
}


def explain_program(
    program: Program, rows: int, columns: int, dtype: DType, roofs: Roofs
) -> Explanation:
    """Explain a program on tensors of `[rows, columns]`.

    Args:
        program: from `parse_program`.
        rows: M >= 1.
        columns: C >= 1.
        dtype: of every tensor.
        roofs: of the device.
    """
    forms = tuple(
        _form(backend, program_traffic(program, backend, rows, columns, dtype), program, roofs)
        for backend in PROGRAM_BACKENDS
    )
    advice = program_advice(rows * columns, dtype, roofs, forms)
    return Explanation(
        subject=program.text,
        is_mlp=False,
        dtype=dtype,
        roofs=roofs,
        points=(Point(rows, columns, forms, advice),),
        turning=program_turning(program, dtype, roofs),
    )


def _form(
    backend: str, launches: tuple[KernelTraffic, ...], program: Program, roofs: Roofs
) -> Form:
    return Form(
        backend,
        _DESCRIPTIONS[backend],
        kernels_of(launches, roofs.bandwidth_bytes_per_s, roofs.elementwise_flops),
        peak_intermediate_bytes(launches, program.outputs),
    )
