"""Compiles the shipped kernels for GPUs that need not be there; prints one JSON line per variant.

A program of its own (`test_compiled_kernels.py` runs it): two spawned processes share the work, and
the compiler must not be replaced by the interpreter.
"""

from __future__ import annotations

import json
import multiprocessing
import re
import subprocess
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from gatefuse_kernels import plan
from gatefuse_kernels.plan import Tile
from gatefuse_kernels.shapes import Activation, DType, MlpShape

LLAMA_8B = MlpShape(4096, 14336)
TINY_LLAMA = MlpShape(256, 688)
ODD = MlpShape(4097, 14335)

_POINTER = {DType.BF16: "*bf16", DType.FP16: "*fp16", DType.FP32: "*fp32"}
_ASYNC_COPY = re.compile(r"cp\.async\.c[ag]\.shared\.global \[[^]]*\] *, *\[[^]]*\] *, *(0x\w+)")
_DIVISIBLE_BY_16 = [["tt.divisibility", 16]]


@dataclass(frozen=True)
class Job:
    """One kernel variant."""

    kernel: str
    tile: Tile
    dtype: DType
    capability: int
    shape: MlpShape = LLAMA_8B
    activation: str = "silu"

    def __str__(self) -> str:
        tile = self.tile
        order = "swapped" if tile.swapped else "plain"
        return (
            f"{self.kernel} {self.dtype} sm_{self.capability} {self.shape} {self.activation} "
            f"{tile.rows}x{tile.columns}x{tile.inner} {tile.warps}w {tile.stages}s {order}"
        )


def jobs() -> list[Job]:
    """Every shipped tile with each dtype it serves, then what a width or an activation changes."""
    wanted: list[Job] = []
    for dtype, capability in (
        (DType.BF16, 90),
        (DType.FP16, 90),
        (DType.FP32, 90),
        (DType.BF16, 80),
    ):
        *plans, narrow = plan.shipped(dtype, capability // 10)
        for kernel in ("gate_up", "down"):
            wanted += [
                Job(kernel, tiles.gate_up if kernel == "gate_up" else tiles.down, dtype, capability)
                for tiles in plans
            ]
            wanted.append(Job(kernel, narrow.gate_up, dtype, capability, ODD))
    first, *_, largest, _ = plan.shipped(DType.BF16)
    for tiles in (first, largest):
        # 688 columns leave a masked tail in every inner loop; the other activations cost registers.
        wanted.append(Job("down", tiles.down, DType.BF16, 90, TINY_LLAMA))
        wanted += [
            Job("gate_up", tiles.gate_up, DType.BF16, 90, activation=activation.value)
            for activation in Activation
        ]
    return list(dict.fromkeys(wanted))


def compile_one(job: Job) -> dict[str, object]:
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
    ptx = compiled.asm["ptx"]
    return {
        "job": str(job),
        "capability": job.capability,
        "dtype": job.dtype.value,
        "aligned": job.shape != ODD,
        "registers": registers,
        "stack_bytes": stack,
        "shared_bytes": compiled.metadata.shared,
        "tensor_core_instructions": len(re.findall(r"wgmma\.mma_async|mma\.sync", ptx)),
        "wgmma_instructions": ptx.count("wgmma.mma_async"),
        # The pipelined loads: cp.async of 16 bytes; anything narrower would show as 0x4 or 0x8.
        "async_copy_bytes": sorted({int(size, 16) for size in _ASYNC_COPY.findall(ptx)}),
        "loads": sorted(set(re.findall(r"ld\.global\S*", ptx))),
        "stores": sorted(set(re.findall(r"st\.global\S*", ptx))),
    }


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


def main() -> None:
    """Print the facts of every job."""
    # Spawned, not forked: torch's threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        for facts in pool.map(compile_one, jobs()):
            print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
