"""What `gatefuse audit` can be asked."""

from __future__ import annotations

import argparse
from pathlib import Path

from gatefuse_kernels.explain.quantities import parse_elements
from gatefuse_kernels.shapes import MAX_ROWS

_DESCRIPTION = """\
Audits the counters of a configuration's models on this machine's GPU. Launches: the models are served
under torch.profiler, requests of every size go through gRPC, and the launches that Prometheus exports
must equal the kernels that ran. Bytes: each model's kernels run once under Nsight Compute (ncu), and the
bytes that were modelled stand beside those that DRAM and L2 moved, kernel by kernel. Nothing else may use
the GPU meanwhile. Without ncu, or without the right to read counters, launches are audited alone.
"""
_EPILOG = """\
FILE is what `gatefuse serve --audit-file FILE` exports as gatefuse_counter_audit_ratio.

exit status: 0 audited, and launches are equal; 1 launches differ; 2 wrong usage; 69 no CUDA device;
70 a process of the audit failed; 73 FILE cannot be written; 78 the configuration cannot be used, or a
package is missing.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("config", type=Path, help="YAML configuration, as for `gatefuse serve`")
    add(
        "--rows",
        type=_row_counts,
        default=(),
        metavar="M,...",
        help="row counts of MLPs under the counters (default: every graph's)",
    )
    add(
        "--elements",
        type=_elements,
        metavar="N",
        help="size of an elementwise model's tensors under the counters (default: 32 times L2)",
    )
    add("--launches-only", action="store_true", help="leave the bytes out")
    add("--ncu", default="ncu", metavar="FILE", help="Nsight Compute (default: ncu on the PATH)")
    add(
        "--json",
        type=Path,
        metavar="FILE",
        help="write everything that was found here; - prints it",
    )


def _row_counts(given: str) -> tuple[int, ...]:
    counts = [item.strip() for item in given.split(",")]
    if not all(count.isdecimal() and 1 <= int(count) <= MAX_ROWS for count in counts):
        raise argparse.ArgumentTypeError(
            f"row counts are integers in 1..{MAX_ROWS}, separated by commas, not {given!r}"
        )
    return tuple(sorted(set(map(int, counts))))


def _elements(given: str) -> int:
    try:
        return parse_elements(given)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
