"""What a compiled kernel takes of a multiprocessor, read from its cubin by the tool in Triton's wheel."""

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton


@dataclass(frozen=True, slots=True)
class Resources:
    """Of one compiled kernel.

    Attributes:
        registers: per thread.
        stack_bytes: per thread; spilled registers show here.
        shared_bytes: per program.
        warps: per program.
    """

    registers: int
    stack_bytes: int
    shared_bytes: int
    warps: int


def resources_of(made: Any) -> Resources:
    """Read a kernel that Triton compiled.

    Raises:
        OSError, subprocess.CalledProcessError: the wheel's cuobjdump cannot be run.
        ValueError: it says something unknown.
    """
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        command = [str(tool), "--dump-resource-usage", file.name]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", text)
    if found is None:
        raise ValueError(f"cuobjdump names no registers: {text!r}")
    metadata = made.metadata
    return Resources(int(found[1]), int(found[2]), metadata.shared, metadata.num_warps)
