"""`gatefuse explain`: asks, explains, and shows what was asked for."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from gatefuse.commands.conventions import (
    EXIT_BROKEN_PIPE,
    EXIT_CANNOT_WRITE,
    EXIT_CONFIG,
    EXIT_USAGE,
)
from gatefuse.commands.explain.options import DEFAULT_ELEMENTS, DEFAULT_ROWS
from gatefuse.commands.explain.printing import show
from gatefuse.missing_packages import missing_package
from gatefuse_kernels.explain.as_json import json_of
from gatefuse_kernels.explain.mlp import explain_mlp
from gatefuse_kernels.explain.program import explain_program
from gatefuse_kernels.explain.results import Explanation
from gatefuse_kernels.explain.roofs import Roofs, find_device, roofs_given, roofs_of
from gatefuse_kernels.expression import Program, check_all_used, parse_program
from gatefuse_kernels.expression.triton_source import program_source
from gatefuse_kernels.plan import DeviceProfile
from gatefuse_kernels.shapes import DType, MlpShape

_DEFAULT_DEVICE = "h200"
_MLP_ONLY = ("hidden", "intermediate", "rows")
_CHAIN_ONLY = ("constants", "vectors", "elements", "columns", "source")
_VECTOR_COLUMNS = 4096


class _UsageError(ValueError):
    """What was asked for does not go together; the text says why."""


def run(arguments: argparse.Namespace) -> int:
    """Explains; returns the exit status."""
    try:
        _check(arguments)
        program = _program(arguments)
        if arguments.source and program is not None:
            return _printed(partial(_print_source, program, DType(arguments.dtype)))
        if arguments.plot and not arguments.plot.parent.is_dir():
            _say(f"cannot write {arguments.plot}: there is no folder {arguments.plot.parent}")
            return EXIT_CANNOT_WRITE
        explanation = _explain(arguments, program)
    except ValueError as error:
        _say(str(error))
        return EXIT_USAGE
    status = _printed(partial(_print_json if arguments.json else show, explanation))
    return _draw(explanation, arguments.plot) if arguments.plot and not status else status


def _printed(print_it: Callable[[], None]) -> int:
    """Prints to stdout; returns the exit status, whatever becomes of what reads it."""
    try:
        print_it()
        sys.stdout.flush()
    except OSError as error:
        # What is left in the buffer would fail again when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return EXIT_BROKEN_PIPE
        _say(f"cannot print: {error.strerror or error}")
        return EXIT_CANNOT_WRITE
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Raises _UsageError unless the options go together."""
    asked = {name for name, value in vars(arguments).items() if value}
    has_shape = {"hidden", "intermediate"} <= asked
    if has_shape == ("expression" in asked):
        raise _UsageError("give --hidden and --intermediate, or --expression")
    for foreign in asked.intersection(_CHAIN_ONLY if has_shape else _MLP_ONLY):
        subject = "an expression" if has_shape else "an MLP"
        raise _UsageError(f"--{foreign} belongs to {subject}")
    if ("bandwidth" in asked) != ("flops" in asked):
        raise _UsageError("--bandwidth and --flops are given together")
    for other in {"json", "plot"} & asked if "source" in asked else ():
        raise _UsageError(f"--source and --{other} do not go together: it prints the kernel alone")
    if {"bandwidth", "device"} <= asked:
        raise _UsageError("--device has its own roofs: leave --bandwidth and --flops out")


def _program(arguments: argparse.Namespace) -> Program | None:
    if arguments.expression is None:
        return None
    text, constants, vectors = arguments.expression, arguments.constants, arguments.vectors
    program = parse_program(text, constants, vectors)
    check_all_used(text, (*constants, *vectors))
    return program


def _explain(arguments: argparse.Namespace, program: Program | None) -> Explanation:
    gpu = _gpu_profile()
    roofs = _roofs(arguments, gpu)
    dtype = DType(arguments.dtype)
    subject = program or MlpShape(arguments.hidden, arguments.intermediate)
    if isinstance(subject, MlpShape):
        explanation = explain_mlp(subject, arguments.rows or DEFAULT_ROWS, dtype, roofs)
    else:
        columns = arguments.columns or (_VECTOR_COLUMNS if subject.vectors else 1)
        rows = _whole_rows(arguments.elements or DEFAULT_ELEMENTS, columns)
        explanation = explain_program(subject, rows, columns, dtype, roofs)
    if roofs.profile is not None and not arguments.no_compile:
        explanation = _compiled(subject, explanation)
    if gpu is not None and roofs.profile == gpu and not arguments.no_measure:
        explanation = _measured(subject, explanation)
    return explanation


def _whole_rows(elements: int, columns: int) -> int:
    """Raises _UsageError if there is not even one."""
    if elements < columns:
        raise _UsageError(f"{elements} elements are less than a row of {columns} columns")
    return elements // columns


def _roofs(arguments: argparse.Namespace, gpu: DeviceProfile | None) -> Roofs:
    if arguments.bandwidth:
        return roofs_given(arguments.bandwidth, arguments.flops, "the given device")
    device = arguments.device or gpu or find_device(_DEFAULT_DEVICE)
    # The driver's own description of this machine's GPU goes before the datasheet's.
    if gpu is not None and device.name == gpu.name:
        device = gpu
    return roofs_of(device, DType(arguments.dtype))


def _gpu_profile() -> DeviceProfile | None:
    try:
        from gatefuse_kernels.explain.measuring import gpu_profile
    except ModuleNotFoundError as error:
        missing_package(error)
        return None  # torch is not installed, and need not be
    return gpu_profile()


def _compiled(subject: MlpShape | Program, explanation: Explanation) -> Explanation:
    """With what the compiler makes of our kernels, where there is one."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        return explanation
    try:
        from gatefuse_kernels.explain import compiling
    except ModuleNotFoundError as error:
        missing_package(error)
        return explanation  # neither need torch nor Triton be
    try:
        if isinstance(subject, MlpShape):
            return compiling.compile_mlp(subject, explanation)
        return compiling.compile_program(subject, explanation)
    except Exception as error:
        # Whatever a compiler of another version says of a kernel, the rest is still worth showing.
        line = str(error).strip().partition("\n")[0]
        _say(f"the kernels were not compiled: {type(error).__name__}: {line}")
        return explanation


def _measured(subject: MlpShape | Program, explanation: Explanation) -> Explanation:
    from gatefuse_kernels.explain import measuring

    try:
        if isinstance(subject, MlpShape):
            return measuring.measure_mlp(subject, explanation)
        return measuring.measure_program(subject, explanation)
    except (RuntimeError, ValueError) as error:
        # Too large for this GPU's memory, or for a launch: what was predicted is still worth showing.
        line = str(error).strip().partition("\n")[0]
        _say(f"nothing was measured: {type(error).__name__}: {line}")
        return explanation


def _print_source(program: Program, dtype: DType) -> None:
    print(program_source(program, dtype), end="")


def _print_json(explanation: Explanation) -> None:
    print(json.dumps(json_of(explanation), indent=1))


def _draw(explanation: Explanation, path: Path) -> int:
    try:
        from gatefuse.commands.explain.picture import draw
    except ModuleNotFoundError as error:
        _say(f"--plot needs {missing_package(error)}: pip install 'gatefuse[loadtest]'")
        return EXIT_CONFIG
    try:
        draw(explanation, path)
    except OSError as error:
        _say(f"cannot write {path}: {error.strerror or error}")
        return EXIT_CANNOT_WRITE
    except ValueError as error:
        _say(str(error))
        return EXIT_USAGE
    print(f"wrote {path}", file=sys.stderr)
    return 0


def _say(what: str) -> None:
    print(f"gatefuse explain: {what}", file=sys.stderr, flush=True)
