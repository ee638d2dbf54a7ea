"""Elementwise programs on a CPU: one pass over memory, by three means, against torch's ops one by one.

    python benchmarks/elementwise_cpu.py [--json benchmarks/results/NAME.json]

`inductor` is the C++ that torch.compile makes, `blocks` are torch's ops on blocks that stay in the cache, and
`numexpr` is that library where it is installed: it knows float32 alone, and no erf. All forms of a program
take turns, call by call; printed is the median of each and the median of the paired ratios (eager / form;
above 1 the form is faster). Refuses to print a figure whose answer is wrong.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from gatefuse_kernels import dtypes
from gatefuse_kernels.elementwise import build_elementwise
from gatefuse_kernels.elementwise.call import Setting
from gatefuse_kernels.elementwise.compiled import CompiledElementwise
from gatefuse_kernels.elementwise.cpu import BlockedElementwise
from gatefuse_kernels.elementwise.torch_ops import evaluate
from gatefuse_kernels.expression import Program, parse_program
from gatefuse_kernels.ledger import Ledger
from gatefuse_kernels.shapes import DType

PROGRAMS = (
    "x * 2 + 3",
    "silu(g) * u",
    "gelu(x) * 1.7 + residual",
    "gelu_tanh(x)",
    "((((((x * 1.1 + 0.1) * 1.2 - x) * 0.9 + 1) * x - 2) * 0.5 + x) * x - 1) * 0.1",
)
NUMEXPR = {
    "x * 2 + 3": "x * 2 + 3",
    "silu(g) * u": "g / (1 + exp(-g)) * u",
    PROGRAMS[-1]: PROGRAMS[-1],
}
COLUMNS = 4096
ERROR_LIMIT = {DType.FP32: 1e-5, DType.FP16: 2e-3, DType.BF16: 1.6e-2}

Form = Callable[[], object]


def main() -> int:
    """Run every case; 1 if an answer is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--seconds", type=float, default=4.0, help="per case (default 4)")
    parser.add_argument(
        "--rows", type=int, default=2048, help=f"of {COLUMNS} columns (default 2048)"
    )
    arguments = parser.parse_args()
    results = []
    for text in PROGRAMS:
        for dtype in (DType.FP32, DType.BF16):
            program = parse_program(text, {})
            case = measure(program, dtype, arguments.rows, arguments.seconds)
            if case is None:
                print(f"{text} {dtype}: wrong answer", file=sys.stderr)
                return 1
            print(f"{text}  {dtype}")
            for name, (median_ms, ratio) in case.items():
                print(f"    {name:10}{median_ms:9.2f} ms{ratio:8.2f}")
                results.append(
                    {
                        "program": text,
                        "dtype": dtype.value,
                        "form": name,
                        "median_ms": round(median_ms, 3),
                        "eager_over_form": round(ratio, 3),
                    }
                )
    if arguments.json:
        shape = [arguments.rows, COLUMNS]
        found = {"machine": machine(), "shape": shape, "command": command(), "cases": results}
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def measure(
    program: Program, dtype: DType, rows: int, seconds: float
) -> dict[str, tuple[float, float]] | None:
    """Median ms and ratio of each form; None if one is wrong."""
    generator = torch.Generator().manual_seed(0)
    kind = dtypes.to_torch(dtype)
    inputs = [torch.randn(rows, COLUMNS, generator=generator).to(kind) for _ in program.inputs]
    out = torch.empty_like(inputs[0])
    (expected,) = evaluate(program, dict(zip(program.inputs, inputs, strict=True)), in_float32=True)
    assert isinstance(expected, torch.Tensor)
    forms = forms_of(program, dtype, inputs, out)
    for name, form in forms.items():
        out.fill_(math.nan)
        form()
        limit = ERROR_LIMIT[dtype] * (4 if name == "eager" else 1)
        if not torch.allclose(out.float(), expected, rtol=limit, atol=limit):
            return None
    rounds: list[dict[str, float]] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(rounds) < 7:
        rounds.append({name: time_ms(form) for name, form in forms.items()})
    return {
        name: (
            statistics.median(each[name] for each in rounds),
            statistics.median(each["eager"] / each[name] for each in rounds),
        )
        for name in forms
    }


def forms_of(
    program: Program, dtype: DType, inputs: list[torch.Tensor], out: torch.Tensor
) -> dict[str, Form]:
    """What takes turns, eager first."""
    setting = Setting(program, {}, Ledger(), dtype, torch.device("cpu"), inputs[0].shape[0])
    eager = build_elementwise(
        "eager",
        program,
        vectors={},
        ledger=Ledger(),
        dtype=dtype,
        device="cpu",
        max_rows=inputs[0].shape[0],
    )
    inductor, blocks = CompiledElementwise(setting, "fused"), BlockedElementwise(setting)
    inductor.warm_up()
    forms: dict[str, Form] = {
        "eager": lambda: eager(inputs, [out]),
        "inductor": lambda: inductor(inputs, [out]),
        "blocks": lambda: blocks(inputs, [out]),
    }
    numexpr = optional("numexpr")
    if numexpr is not None and dtype is DType.FP32 and program.text in NUMEXPR:
        names = dict(zip(program.inputs, (each.numpy() for each in inputs), strict=True))
        target = out.numpy()
        numexpr.set_num_threads(torch.get_num_threads())
        forms["numexpr"] = lambda: numexpr.evaluate(
            NUMEXPR[program.text], local_dict=names, global_dict={}, out=target, casting="same_kind"
        )
    return forms


def optional(name: str) -> Any:
    """The module, or None where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def time_ms(form: Form) -> float:
    """One call, in milliseconds."""
    start = time.perf_counter()
    form()
    return (time.perf_counter() - start) * 1e3


def command() -> str:
    """What was run."""
    return " ".join(["python", "benchmarks/elementwise_cpu.py", *sys.argv[1:]])


def machine() -> dict[str, object]:
    """What the figures depend on."""
    numexpr = optional("numexpr")
    return {
        "processor": platform.processor() or platform.machine(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numexpr": numexpr.__version__ if numexpr is not None else None,
        "date": time.strftime("%Y-%m-%d"),
    }


if __name__ == "__main__":
    raise SystemExit(main())
