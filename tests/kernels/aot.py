"""Compiles the shipped kernels for a GPU that need not be there, and reads the result.

A test asks `compile_all` for facts about every (kernel, tile, dtype, GPU) at once; two processes
share the work. Never import this where the interpreter is on: it replaces the compiler.
"""

from __future__ import annotations

import multiprocessing
import re
import subprocess
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from gatefuse_kernels.plan import Tile
from gatefuse_kernels.shapes import DType, MlpShape

_POINTER = {DType.BF16: "*bf16", DType.FP16: "*fp16", DType.FP32: "*fp32"}
_DIVISIBLE_BY_16 = [["tt.divisibility", 16]]


@dataclass(frozen=True)
class Job:
    """One kernel variant."""

    kernel: str
    tile: Tile
    dtype: DType
    capability: int
    shape: MlpShape = MlpShape(4096, 14336)
    activation: str = "silu"

    def __str__(self) -> str:
        tile = self.tile
        order = "swapped" if tile.swapped else "plain"
        return (
            f"{self.kernel} {self.dtype} sm_{self.capability} {self.shape} {self.activation} "
            f"{tile.rows}x{tile.columns}x{tile.inner} {tile.warps}w {tile.stages}s {order}"
        )


@dataclass(frozen=True)
class Facts:
    """What the compiler made of a job; sizes in bytes."""

    registers: int
    stack_bytes: int
    shared_bytes: int
    ptx: str


def compile_all(jobs: list[Job]) -> dict[Job, Facts]:
    """Compile in two fresh processes (spawned: torch's threads do not survive a fork)."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        return dict(zip(jobs, pool.map(compile_one, jobs), strict=True))


def compile_one(job: Job) -> Facts:
    """Compile one variant with every pointer 16-byte aligned, as torch's allocations are."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from gatefuse_kernels.swiglu.down import swiglu_down
    from gatefuse_kernels.swiglu.gate_up import swiglu_gate_up

    tile, pointer = job.tile, _POINTER[job.dtype]
    is_gate_up = job.kernel == "gate_up"
    function = swiglu_gate_up if is_gate_up else swiglu_down
    constants: dict[str, object] = {
        "HIDDEN": job.shape.hidden,
        "INTERMEDIATE": job.shape.intermediate,
        "BLOCK_ROWS": tile.rows,
        "BLOCK_COLUMNS": tile.columns,
        "BLOCK_INNER": tile.inner,
        "SWAPPED": tile.swapped,
        "GROUP": tile.group,
    }
    if is_gate_up:
        constants["ACTIVATION"] = job.activation
    names: list[str] = function.arg_names  # type: ignore[attr-defined]
    signature = dict.fromkeys(names, "constexpr")
    signature.update(dict.fromkeys(names[:3], pointer), rows="i32")
    source = ASTSource(
        fn=function,
        signature=signature,
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(index,): _DIVISIBLE_BY_16 for index in range(3)},
    )
    compiled = triton.compile(
        source,
        target=GPUTarget("cuda", job.capability, 32),
        options={"num_warps": tile.warps, "num_stages": tile.stages},
    )
    registers, stack = _resources(compiled.asm["cubin"])
    return Facts(registers, stack, compiled.metadata.shared, compiled.asm["ptx"])


def _resources(cubin: bytes) -> tuple[int, int]:
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tool), "--dump-resource-usage", file.name]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", text)
    assert found, text
    return int(found[1]), int(found[2])
