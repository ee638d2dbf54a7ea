"""What the compiler made of a kernel, read from its PTX and its cubin."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

from gatefuse_kernels.aot.resources import resources_of

_ASYNC_COPY = re.compile(r"cp\.async\.c[ag]\.shared\.global \[[^]]*\] *, *\[[^]]*\] *, *(0x\w+)")
_TENSOR_CORES = re.compile(r"wgmma\.mma_async|mma\.sync|tcgen05\.mma")
_READ = re.compile(r"(?:ld\.global|cp\.async\.c[ag]|cp\.async\.bulk\.tensor)[^\s;]*")
_READ_ONCE = "evict_first"
"""How weights are read, and nothing else."""
_WAIT = "griddepcontrol.wait"
_WIDE_ACCESS = re.compile(r"\.v4\.[bfu]32|\.v2\.[bfu]64|\.v8\.[bfu]32|\.v4\.[bfu]64")


@dataclass(frozen=True)
class Facts:
    """One compiled variant.

    Attributes:
        job: the job's text.
        kernel: the kernel's name.
        capability: 90 for sm_90.
        dtype: of its matrices.
        is_aligned: every row starts on 16 bytes.
        registers: per thread.
        stack_bytes: per thread; spilled registers show here.
        shared_bytes: per program.
        planned_shared_bytes: the most by its tile; None without one.
        lone_arrivals: at a barrier in shared memory, without a synchronisation of the warps just before.
        tensor_cores: instructions of any generation.
        wgmma: those of Hopper.
        copied_bytes: sizes of the asynchronous copies into shared memory.
        bulk_copies: asynchronous copies by descriptor.
        narrow_loads: loads of global memory below 16 bytes.
        wide_loads: those of 16 bytes or more.
        wide_stores: likewise.
        waits: instructions that wait for the launch before.
        reads_before_wait: reads of global memory that stand before the first of them.
        unhinted_before_wait: those of them that are no loads of weights.
        unhinted_after_wait: likewise after it.
        float64: instructions on doubles.
    """

    job: str
    kernel: str
    capability: int
    dtype: str
    is_aligned: bool
    registers: int
    stack_bytes: int
    shared_bytes: int
    planned_shared_bytes: int | None
    lone_arrivals: int
    tensor_cores: int
    wgmma: int
    copied_bytes: tuple[int, ...]
    bulk_copies: int
    narrow_loads: tuple[str, ...]
    wide_loads: tuple[str, ...]
    wide_stores: tuple[str, ...]
    waits: int
    reads_before_wait: int
    unhinted_before_wait: int
    unhinted_after_wait: int
    float64: int

    def to_json(self) -> dict[str, Any]:
        """As a dictionary."""
        return asdict(self)


def facts_of(
    job: str,
    kernel: str,
    capability: int,
    dtype: str,
    aligned: bool,
    made: Any,
    planned_shared_bytes: int | None = None,
) -> Facts:
    """Read a compiled kernel."""
    ptx = made.asm["ptx"]
    resources = resources_of(made)
    # Without a wait nothing stands before it.
    before, _, after = ptx.partition(_WAIT) if _WAIT in ptx else ("", "", ptx)
    early, late = _READ.findall(before), _READ.findall(after)
    loads, stores = (sorted(set(re.findall(rf"{op}\.global\S*", ptx))) for op in ("ld", "st"))
    return Facts(
        job=job,
        kernel=kernel,
        capability=capability,
        dtype=dtype,
        is_aligned=aligned,
        registers=resources.registers,
        stack_bytes=resources.stack_bytes,
        shared_bytes=resources.shared_bytes,
        planned_shared_bytes=planned_shared_bytes,
        lone_arrivals=_lone_arrivals(ptx),
        tensor_cores=len(_TENSOR_CORES.findall(ptx)),
        wgmma=ptx.count("wgmma.mma_async"),
        copied_bytes=tuple(sorted({int(size, 16) for size in _ASYNC_COPY.findall(ptx)})),
        bulk_copies=ptx.count("cp.async.bulk.tensor"),
        narrow_loads=tuple(load for load in loads if not _WIDE_ACCESS.search(load)),
        wide_loads=tuple(load for load in loads if _WIDE_ACCESS.search(load)),
        wide_stores=tuple(store for store in stores if _WIDE_ACCESS.search(store)),
        waits=ptx.count(_WAIT),
        reads_before_wait=len(early),
        unhinted_before_wait=sum(_READ_ONCE not in read for read in early),
        unhinted_after_wait=sum(_READ_ONCE not in read for read in late),
        float64=len(re.findall(r"\.f64\b", ptx)),
    )


def _lone_arrivals(ptx: str) -> int:
    """A thread arrives for all warps of a partition, so all must have got there.

    Between the two stands at most what tells that thread from the others.
    """
    lines = (line.strip() for line in ptx.splitlines())
    code = [line for line in lines if line and not line.startswith(("//", ".loc", ".file"))]
    places = [at for at, line in enumerate(code) if "mbarrier.arrive.shared" in line]
    return sum(not any("bar.sync" in line for line in code[at - 2 : at]) for at in places)
