"""The one place for byte and FLOP formulas: what each launch reads, writes and computes.

The ledger counts with them while serving, and `explain` prints them. Pure: no torch, no triton.
"""

from gatefuse_kernels.traffic.kernel import (
    KernelTraffic,
    Transfer,
    helper_launch,
    passes,
    peak_intermediate_bytes,
)
from gatefuse_kernels.traffic.mlp import (
    ACTIVATION_FLOPS,
    compiled_mlp,
    eager_mlp,
    fused_mlp,
    ideal_mlp,
    library_mlp,
    pad_rows,
    swiglu_gate,
    textbook_mlp,
)
from gatefuse_kernels.traffic.program import PROGRAM_BACKENDS, program_traffic

__all__ = [
    "ACTIVATION_FLOPS",
    "PROGRAM_BACKENDS",
    "KernelTraffic",
    "Transfer",
    "compiled_mlp",
    "eager_mlp",
    "fused_mlp",
    "helper_launch",
    "ideal_mlp",
    "library_mlp",
    "pad_rows",
    "passes",
    "peak_intermediate_bytes",
    "program_traffic",
    "swiglu_gate",
    "textbook_mlp",
]
