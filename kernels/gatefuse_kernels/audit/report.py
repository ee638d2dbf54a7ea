"""What an audit found, as JSON; and what a server tells of it in its metrics. Pure."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gatefuse_kernels.audit.comparing import (
    KernelBytes,
    LaunchCount,
    Mismatch,
    dram_ratios,
    launch_ratio,
)

CHECKS = ("launches", "dram_read", "dram_write")


class AuditFileError(ValueError):
    """A file is no audit's result; the text names it."""


@dataclass(frozen=True, slots=True)
class AuditReport:
    """All of one audit.

    Attributes:
        facts: date, command, device, versions.
        timestamp_s: when it ended, seconds since 1970.
        l2_bytes: of the device; 0 if no bytes were counted.
        launches: of each served model.
        compared: bytes of each launch.
        mismatches: calls whose launches differ from the counted ones.
        bytes_note: why no bytes were counted; empty if they were.
    """

    facts: Mapping[str, str]
    timestamp_s: float
    l2_bytes: int
    launches: tuple[LaunchCount, ...]
    compared: tuple[KernelBytes, ...] = ()
    mismatches: tuple[Mismatch, ...] = ()
    bytes_note: str = ""

    @property
    def is_equal(self) -> bool:
        """Whether every launch that ran was counted, and no other."""
        return all(each.is_equal for each in self.launches) and not self.mismatches

    @property
    def ratios(self) -> dict[str, float]:
        """Measured by counted, by check; a check that was not made is left out."""
        launches = {"launches": launch_ratio(self.launches)} if self.launches else {}
        return {**launches, **dram_ratios(self.compared, self.l2_bytes)}


def json_of(report: AuditReport) -> dict[str, Any]:
    """All of it."""
    return {
        **report.facts,
        "equal": report.is_equal,
        "checks": {
            check: {"ratio": ratio, "timestamp_s": report.timestamp_s}
            for check, ratio in report.ratios.items()
        },
        "l2_bytes": report.l2_bytes,
        "launches": [{**asdict(each), "equal": each.is_equal} for each in report.launches],
        "mismatches": [asdict(each) for each in report.mismatches],
        "bytes_note": report.bytes_note,
        "kernels": [_kernel(each) for each in report.compared],
    }


def read_checks(path: Path) -> dict[str, tuple[float, float]]:
    """Ratio and time, in seconds since 1970, of each check in a file that `gatefuse audit` wrote.

    Raises:
        AuditFileError: it cannot be read, or is no audit's result.
    """
    try:
        checks = json.loads(path.read_text(encoding="utf-8"))["checks"]
        found = {
            check: (float(each["ratio"]), float(each["timestamp_s"]))
            for check, each in checks.items()
        }
    except OSError as error:
        raise AuditFileError(f"{path}: {error.strerror or error}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise AuditFileError(f"{path}: not what `gatefuse audit --json` writes") from error
    unknown = sorted(set(found) - set(CHECKS))
    if unknown:
        raise AuditFileError(f"{path}: has checks that nobody makes: {', '.join(unknown)}")
    return found


def _kernel(each: KernelBytes) -> dict[str, Any]:
    measured = each.measured
    return {
        "model": each.model,
        "backend": each.backend,
        "rows": each.rows,
        "kernel": each.kernel,
        "device_kernel": measured.kernel,
        "read_bytes": each.read_bytes,
        "dram_read_bytes": measured.dram_read_bytes,
        "read_ratio": each.read_ratio,
        "l2_read_bytes": measured.l2_read_bytes,
        "written_bytes": each.written_bytes,
        "dram_written_bytes": measured.dram_written_bytes,
        "write_ratio": each.write_ratio,
        "l2_written_bytes": measured.l2_written_bytes,
        "us": measured.seconds * 1e6,
    }
