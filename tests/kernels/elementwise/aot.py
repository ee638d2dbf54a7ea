"""Compiles generated kernels for GPUs that need not be there; prints one JSON line per compiled kernel.

A program of its own (`test_aot.py` runs it, as `python -m tests.kernels.elementwise.aot`), because the
compiler must not be replaced by the interpreter, nor the driver that other tests look for.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from tests.kernels.aot.facts import Facts, facts_of

from gatefuse_kernels import dtypes
from gatefuse_kernels.aot.offline import compiling_for
from gatefuse_kernels.elementwise.call import Setting
from gatefuse_kernels.elementwise.fused import FusedElementwise
from gatefuse_kernels.expression import FUNCTIONS, OPERATIONS, Program, parse_program
from gatefuse_kernels.ledger import Ledger
from gatefuse_kernels.shapes import DType

CAPABILITIES = (80, 90, 100)
ROWS = 64
COLUMNS = 4096

CHAINS = {
    "linear": "x * 2 + 3",
    "silu": "silu(g) * u",
    "gelu": "gelu(x) * 1.7 + residual",
    "gelu_tanh": "gelu_tanh(x)",
    "twelve": "((((((x * 1.1 + 0.1) * 1.2 - x) * 0.9 + 1) * x - 2) * 0.5 + x) * x - 1) * 0.1",
    "vectors": "gelu(x) * scale + shift",
    "several": "a = silu(x); b = a * z; c = exp(-abs(z))",
    "fifteen": " + ".join(f"x{number} * {number + 1}.5" for number in range(15)),
    "functions": " + ".join(
        f"{name}(x)" for name in FUNCTIONS if len(OPERATIONS[name].operands) == 1
    ),
    "selections": "where(0 < x <= z, min(x, z), clamp(x, z, 1)) / z + x ** 1.5 + x ** z",
}


@dataclass(frozen=True)
class Job:
    """One chain, compiled once."""

    name: str
    capability: int
    dtype: DType
    columns: int = COLUMNS
    shift: int = 0

    @property
    def is_aligned(self) -> bool:
        """Whether everything starts on 16 bytes: rows matter where there are vectors."""
        rows_align = self.name != "vectors" or self.columns * self.dtype.itemsize % 16 == 0
        return rows_align and self.shift == 0

    def __str__(self) -> str:
        return f"{self.name} sm_{self.capability} {self.dtype} C={self.columns} shift={self.shift}"


def jobs() -> Iterator[Job]:
    """Every chain with each type on each architecture, and what addresses change."""
    for name in CHAINS:
        for dtype in DType:
            for capability in CAPABILITIES:
                yield Job(name, capability, dtype)
    for dtype in DType:
        yield Job("gelu", 90, dtype, columns=4099)
        yield Job("gelu", 90, dtype, shift=1)
        yield Job("vectors", 90, dtype, columns=4099)
        yield Job("vectors", 90, dtype, columns=688)


def compile_job(job: Job) -> Iterator[Facts]:
    """All kernels that one call launches, on memory that is never touched."""
    program = parse_program(CHAINS[job.name], {}, ["scale", "shift"])
    with compiling_for(job.capability) as compiled:
        _launch(job, program)
    for kernel, made in compiled:
        yield facts_of(str(job), kernel, job.capability, job.dtype.value, job.is_aligned, made)


def _launch(job: Job, program: Program) -> None:
    dtype = dtypes.to_torch(job.dtype)

    def matrix() -> torch.Tensor:
        storage = torch.empty(ROWS * job.columns + job.shift, dtype=dtype)
        return storage[job.shift :].view(ROWS, job.columns)

    vectors = {name: torch.empty(job.columns, dtype=dtype) for name in program.vectors}
    setting = Setting(program, vectors, Ledger(), job.dtype, torch.device("cpu"), ROWS)
    FusedElementwise(setting)(
        [matrix() for _ in program.inputs], [matrix() for _ in program.outputs]
    )


def main() -> None:
    """Print the facts of every job."""
    for job in jobs():
        for facts in compile_job(job):
            print(json.dumps({"chain": job.name} | facts.to_json()), flush=True)


if __name__ == "__main__":
    main()
