"""`gatefuse audit`: two processes on the GPU, one after the other, and what they found."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gatefuse.commands.audit.cases import byte_cases
from gatefuse.commands.audit.tables import text
from gatefuse.commands.conventions import (
    EXIT_CANNOT_WRITE,
    EXIT_CONFIG,
    EXIT_SOFTWARE,
    EXIT_UNAVAILABLE,
    EXIT_WRONG,
    STDOUT,
)
from gatefuse.config import ConfigError, ServiceConfig, load_config
from gatefuse_kernels.audit import counters
from gatefuse_kernels.audit.cases import call_of, case_to_json
from gatefuse_kernels.audit.comparing import KernelBytes, LaunchCount, Mismatch, compare
from gatefuse_kernels.audit.counters import CountersError
from gatefuse_kernels.audit.report import AuditReport, json_of
from gatefuse_kernels.errors import CheckpointError
from gatefuse_kernels.explain.measuring import gpu_profile
from gatefuse_kernels.plan import PLAN_TABLE_VARIABLE, format_table


class _ProcessError(RuntimeError):
    """A process of the audit failed; it has said why."""


@dataclass(frozen=True, slots=True)
class _Bytes:
    """What the counters found, or why they found nothing."""

    l2_bytes: int = 0
    compared: tuple[KernelBytes, ...] = ()
    mismatches: tuple[Mismatch, ...] = ()
    note: str = ""


def run(arguments: argparse.Namespace) -> int:
    """Audits; returns the exit status."""
    device = gpu_profile()
    if device is None:
        _say("no CUDA device: launches and bytes are audited on a GPU")
        return EXIT_UNAVAILABLE
    try:
        config = load_config(arguments.config)
        report = _audit(arguments, config, device.l2_bytes)
    except (ConfigError, CheckpointError) as error:
        _say(str(error))
        return EXIT_CONFIG
    except _ProcessError as error:
        _say(str(error))
        return EXIT_SOFTWARE
    if arguments.json == STDOUT:
        print(json.dumps(json_of(report), indent=1))
        return 0 if report.is_equal else EXIT_WRONG
    print(text(report))
    if arguments.json is not None and not _write(arguments.json, report):
        return EXIT_CANNOT_WRITE
    return 0 if report.is_equal else EXIT_WRONG


def _audit(arguments: argparse.Namespace, config: ServiceConfig, l2_bytes: int) -> AuditReport:
    with tempfile.TemporaryDirectory(prefix="gatefuse-audit-") as folder:
        served = _serve_profiled(arguments.config, Path(folder))
        if arguments.launches_only:
            found = _Bytes(note="--launches-only")
        else:
            found = _count_bytes(arguments, config, l2_bytes, Path(folder))
    command = shlex.join(["gatefuse", "audit", arguments.config.name, *_given(arguments)])
    return AuditReport(
        facts={"date": time.strftime("%Y-%m-%d"), "command": command, **served["facts"]},
        timestamp_s=time.time(),
        l2_bytes=found.l2_bytes,
        launches=tuple(
            LaunchCount(**{**each, "buckets": tuple(each["buckets"])})
            for each in served["launches"]
        ),
        compared=found.compared,
        mismatches=found.mismatches,
        bytes_note=found.note,
    )


def _given(arguments: argparse.Namespace) -> list[str]:
    """The options that decide what is audited; no paths."""
    rows = ["--rows", ",".join(map(str, arguments.rows))] if arguments.rows else []
    only = ["--launches-only"] if arguments.launches_only else []
    elements = ["--elements", str(arguments.elements)] if arguments.elements else []
    return [*rows, *elements, *only]


def _serve_profiled(config: Path, folder: Path) -> dict[str, Any]:
    result = folder / "launches.json"
    command = [sys.executable, "-m", "gatefuse.commands.audit.launches", str(config), str(result)]
    if subprocess.run(command, check=False).returncode != 0 or not result.exists():
        raise _ProcessError("the models could not be served under the profiler")
    found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    return found


def _count_bytes(
    arguments: argparse.Namespace, config: ServiceConfig, l2_bytes: int, folder: Path
) -> _Bytes:
    tool = shutil.which(arguments.ncu)
    if tool is None:
        return _Bytes(
            note=f"{arguments.ncu} is not there: install Nsight Compute, or name it with --ncu"
        )
    cases = byte_cases(config.models, arguments.rows, arguments.elements, l2_bytes)
    cases_path, calls_path = folder / "cases.json", folder / "calls.json"
    cases_path.write_text(json.dumps([case_to_json(case) for case in cases]), encoding="utf-8")
    work = [sys.executable, "-m", "gatefuse_kernels.audit.child", str(cases_path), str(calls_path)]
    process = subprocess.run(
        counters.command(tool, work),
        env=_with_plans(config, folder),
        check=False,
        stdout=subprocess.PIPE,
        text=True,
    )
    if not calls_path.exists():
        return _Bytes(note=counters.explain(process.stdout))
    written = json.loads(calls_path.read_text(encoding="utf-8"))
    calls = [call_of(fields) for fields in written["calls"]]
    try:
        seen = counters.calls_of(counters.parse(process.stdout))
        compared, mismatches = compare(calls, seen)
    except (CountersError, ValueError) as error:
        return _Bytes(note=str(error))
    return _Bytes(written["l2_bytes"], tuple(compared), tuple(mismatches))


def _with_plans(config: ServiceConfig, folder: Path) -> dict[str, str]:
    """The environment in which the plans are those that are served: the configuration's, and no others."""
    if config.plan_table is None:
        return {**os.environ, PLAN_TABLE_VARIABLE: ""}
    path = folder / "plans.json"
    path.write_text(format_table(config.plan_table), encoding="utf-8")
    return {**os.environ, PLAN_TABLE_VARIABLE: str(path)}


def _write(path: Path, report: AuditReport) -> bool:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(json_of(report), indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        _say(f"cannot write {path}: {error.strerror or error}")
        return False
    return True


def _say(what: str) -> None:
    print(f"gatefuse audit: {what}", file=sys.stderr, flush=True)
