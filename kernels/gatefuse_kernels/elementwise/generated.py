"""Generated source made into a kernel, once for a program and dtype.

Triton reads a function's source through `linecache`, so the text is put there under a name of its own:
nothing is written to disk, and a traceback shows the generated line.
"""

import hashlib
import linecache
from functools import lru_cache
from types import CodeType
from typing import Any, cast

from gatefuse_kernels.expression import Program
from gatefuse_kernels.expression.triton_source import KERNEL, program_source
from gatefuse_kernels.launch.jit import Kernel
from gatefuse_kernels.shapes import DType


@lru_cache(maxsize=256)
def kernel_of(program: Program, dtype: DType) -> Kernel:
    """The kernel that computes `program`; equal programs share one."""
    source = program_source(program, dtype)
    digest = hashlib.sha256(source.encode()).hexdigest()[:16]
    filename = f"<{KERNEL} {digest}>"
    # Without a time of modification the entry is never thought to be out of date.
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    # The source is written by `program_source` from a parsed program: names are identifiers that the
    # grammar let through, and all else is its own.
    code: CodeType = compile(source, filename, "exec", dont_inherit=True)
    module: dict[str, Any] = {"__name__": f"gatefuse_kernels.elementwise.generated.{digest}"}
    exec(code, module)
    return cast(Kernel, module[KERNEL])
