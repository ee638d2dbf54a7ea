"""An audit's result as text. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from gatefuse.commands.text_table import text_table
from gatefuse_kernels.audit.comparing import KernelBytes
from gatefuse_kernels.audit.report import AuditReport
from gatefuse_kernels.explain.quantities import scaled

_NOTHING = "-"
_LAUNCH_HEADER = ("model", "requests", "graphs", "exported", "profiled", "")
_BYTES_HEADER = (
    *("model", "kernel", "rows", "read, modelled", "DRAM", "ratio", "L2"),
    *("written, modelled", "DRAM", "ratio", "L2"),
)


def text(report: AuditReport) -> str:
    """All of it, for a terminal."""
    return "\n\n".join(_parts(report))


def _parts(report: AuditReport) -> Iterator[str]:
    yield text_table([_LAUNCH_HEADER, *_launch_rows(report)])
    for each in report.launches:
        if not each.is_equal:
            for side, counts in (("exported", each.exported), ("profiled", each.profiled)):
                lines = (f"{count:>9} {kernel}" for kernel, count in counts.items())
                yield "\n".join((f"{each.model}, {side}:", *lines))
    if report.compared:
        rows = [_bytes_row(each) for each in report.compared]
        yield text_table([_BYTES_HEADER, *rows], left=2)
    for mismatch in report.mismatches:
        yield f"WRONG: {mismatch}"
    if report.bytes_note:
        yield f"bytes were not audited: {report.bytes_note}"
    checks = (f"{check} {ratio:.4f}" for check, ratio in report.ratios.items())
    yield f"measured by counted: {', '.join(checks)}"


def _launch_rows(report: AuditReport) -> Iterator[tuple[str, ...]]:
    for each in report.launches:
        yield (
            each.model,
            str(each.requests),
            ",".join(map(str, each.buckets)) or _NOTHING,
            str(sum(each.exported.values())),
            str(sum(each.profiled.values())),
            "equal" if each.is_equal else "DIFFERENT",
        )


def _bytes_row(each: KernelBytes) -> tuple[str, ...]:
    measured = each.measured
    return (
        each.model,
        each.kernel,
        str(each.rows),
        scaled(each.read_bytes, "B"),
        scaled(measured.dram_read_bytes, "B"),
        _ratio(each.read_ratio),
        scaled(measured.l2_read_bytes, "B"),
        scaled(each.written_bytes, "B"),
        scaled(measured.dram_written_bytes, "B"),
        _ratio(each.write_ratio),
        scaled(measured.l2_written_bytes, "B"),
    )


def _ratio(value: float | None) -> str:
    return _NOTHING if value is None else f"{value:.3f}"
