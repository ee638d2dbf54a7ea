"""What Nsight Compute prints, as recorded on an H200, with fewer kernels; nothing in it is measured again."""

from __future__ import annotations

from gatefuse_kernels.audit.counters import METRICS

HEADER = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size",'
    '"Grid Size","Device","CC","Section Name","Metric Name","Metric Unit","Metric Value"'
)
PREAMBLE = (
    "==WARNING== Note: Running with unmodified GPU clocks. If not controlled otherwise, profiling "
    "results may be inconsistent.\n"
    "==PROF== Connected to process 539 (/usr/bin/python3.12)\n"
    "==PROF== Disconnected from process 539\n"
)
MARKER = "spin_kernel"
GATE_UP = "swiglu_gate_up_streamed"
DOWN = "swiglu_down_streamed"
SPLIT = "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float, 1, 0>"
_UNITS = ("byte", "byte", "sector", "sector", "ns")


def kernel(number: int, name: str, values: tuple[str, ...]) -> list[str]:
    """The lines of one kernel: a metric each, in an order of the tool's own."""
    start = (
        f'"{number}","539","python3.12","127.0.0.1","{name}","1","7","(256, 1, 1)",'
        '"(14336, 1, 1)","0","9.0","Command line profiler metrics"'
    )
    metrics = zip(METRICS, _UNITS, values, strict=True)
    return [f'{start},"{metric}","{unit}","{value}"' for metric, unit, value in sorted(metrics)]


def output(*kernels: tuple[str, tuple[str, ...]]) -> str:
    """The tool's whole output."""
    lines = [line for number, each in enumerate(kernels) for line in kernel(number, *each)]
    return PREAMBLE + "\n".join((HEADER, *lines)) + "\n"


SPUN = ("0", "512", "0", "16", "1,216")
RAN_GATE_UP = ("234,900,224", "2,734,080", "11,029,603", "898", "54,944")
RAN_DOWN = ("117,491,712", "3,471,616", "5,562,568", "256", "31,936")
ONE_CALL = output((MARKER, SPUN), (GATE_UP, RAN_GATE_UP), (DOWN, RAN_DOWN))
