"""Nsight Compute as a subprocess: its command line, and the CSV it prints. Pure."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass

MARKER = "spin_kernel"
"""Part of the name of the kernel behind `torch.cuda._sleep`: one runs before each call, and no call has it."""

_READ, _WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"
_L2_READ, _L2_WRITTEN = "lts__t_sectors_op_read.sum", "lts__t_sectors_op_write.sum"
_TIME = "gpu__time_duration.sum"
METRICS = (_READ, _WRITTEN, _L2_READ, _L2_WRITTEN, _TIME)

_SECTOR_BYTES = 32
_SCALES = {
    "byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9,
    "sector": 1.0,
    "ns": 1e-9, "nsecond": 1e-9, "us": 1e-6, "usecond": 1e-6, "ms": 1e-3, "msecond": 1e-3,
    "s": 1.0, "second": 1.0,
}  # fmt: skip


class CountersError(RuntimeError):
    """The counters cannot be read; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Counted:
    """One kernel under the counters.

    Attributes:
        kernel: its name on the device.
        dram_read_bytes: from device memory.
        dram_written_bytes: to device memory, while it ran: what stays in L2 is not in it, and what
            an earlier kernel left there may be.
        l2_read_bytes: that programs asked of L2.
        l2_written_bytes: that they gave to L2.
        seconds: how long it took, alone and with cold caches.
    """

    kernel: str
    dram_read_bytes: int
    dram_written_bytes: int
    l2_read_bytes: int
    l2_written_bytes: int
    seconds: float


def command(tool: str, work: Sequence[str]) -> list[str]:
    """The command that runs `work` under the counters.

    Caches are flushed before each kernel and clocks are left alone; only what runs between the
    program's own `cudaProfilerStart` and `cudaProfilerStop` is counted, and no process that it starts.
    """
    return [
        tool,
        *("--csv", "--profile-from-start", "off", "--target-processes", "application-only"),
        *("--clock-control", "none", "--cache-control", "all"),
        *("--metrics", ",".join(METRICS)),
        *work,
    ]


def parse(text: str) -> list[Counted]:
    """The kernels in the order in which they ran.

    Args:
        text: what `ncu --csv` wrote to stdout; lines that are no CSV are passed over.

    Raises:
        CountersError: there is no table, or a kernel lacks a metric.
    """
    lines = [line for line in text.splitlines() if line.startswith('"')]
    reader = csv.DictReader(lines)
    found: dict[int, tuple[str, dict[str, float]]] = {}
    for row in reader:
        if None in row.values() or "Metric Name" not in row:
            raise CountersError("Nsight Compute printed a table that cannot be read")
        _, metrics = found.setdefault(int(row["ID"]), (row["Kernel Name"], {}))
        metrics[row["Metric Name"]] = _value(row["Metric Value"], row["Metric Unit"])
    if not found:
        raise CountersError(explain(text))
    return [_counted(kernel, metrics) for _, (kernel, metrics) in sorted(found.items())]


def calls_of(counted: Sequence[Counted]) -> list[list[Counted]]:
    """The kernels of each call: what follows a marker, up to the next."""
    calls: list[list[Counted]] = []
    for each in counted:
        if MARKER in each.kernel:
            calls.append([])
        elif calls:
            calls[-1].append(each)
    return calls


def explain(text: str) -> str:
    """Why there is no table, from what the tool said."""
    if "ERR_NVGPUCTRPERM" in text:
        return (
            "this user may not read the GPU's counters (ERR_NVGPUCTRPERM): run as root or with "
            "CAP_SYS_ADMIN, or load the driver with NVreg_RestrictProfilingToAdminUsers=0"
        )
    errors = [line for line in text.splitlines() if line.startswith(("==ERROR==", "Traceback"))]
    said = errors[0].removeprefix("==ERROR== ") if errors else "no kernel was counted"
    return f"Nsight Compute has no result: {said}"


def _value(given: str, unit: str) -> float:
    try:
        return float(given.replace(",", "")) * _SCALES[unit]
    except (ValueError, KeyError) as error:
        raise CountersError(f"Nsight Compute says {given!r} {unit!r}, no number of ours") from error


def _counted(kernel: str, metrics: dict[str, float]) -> Counted:
    missing = [name for name in METRICS if name not in metrics]
    if missing:
        raise CountersError(f"Nsight Compute did not count {', '.join(missing)} of {kernel}")
    return Counted(
        kernel=kernel,
        dram_read_bytes=round(metrics[_READ]),
        dram_written_bytes=round(metrics[_WRITTEN]),
        l2_read_bytes=round(metrics[_L2_READ] * _SECTOR_BYTES),
        l2_written_bytes=round(metrics[_L2_WRITTEN] * _SECTOR_BYTES),
        seconds=metrics[_TIME],
    )
