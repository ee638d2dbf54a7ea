"""Facts about a run that a figure is worth nothing without: when, where, with what."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_PACKAGES = ("gatefuse", "grpcio", "protobuf", "numpy", "uvloop")
_NVIDIA_SMI = (
    "nvidia-smi",
    "--query-gpu=name,driver_version,memory.total",
    "--format=csv,noheader",
)
_NVIDIA_SMI_TIMEOUT_S = 10


def run_facts(command: str) -> dict[str, str]:
    """Returns date, command line, versions, processor and GPUs of the machine that this runs on."""
    facts = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": command,
        "processor": f"{_processor()}, {len(os.sched_getaffinity(0))} logical cores",
        "GPUs": ", ".join(_gpus()) or "none",
        "system": f"Linux {platform.release()}, Python {platform.python_version()}",
    }
    facts["packages"] = ", ".join(
        f"{name} {found}" for name in _PACKAGES if (found := _version(name))
    )
    return facts


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _gpus() -> list[str]:
    try:
        answer = subprocess.run(
            _NVIDIA_SMI,
            capture_output=True,
            text=True,
            timeout=_NVIDIA_SMI_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in answer.stdout.splitlines() if line.strip()]
