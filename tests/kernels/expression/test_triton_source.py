"""The generated text: readable, deterministic, and made without torch or triton."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from gatefuse_kernels.expression import parse_program
from gatefuse_kernels.expression.triton_source import program_source
from gatefuse_kernels.shapes import DType


def test_one_load_of_each_input_and_one_store_of_each_output() -> None:
    program = parse_program("t = silu(g) * v; y = t * u + u; z = t ** 2", {}, ["v"])
    source = program_source(program, DType.BF16)
    loads = [line for line in source.splitlines() if "tl.load" in line]
    stores = [line for line in source.splitlines() if "tl.store" in line]
    assert [line.split()[0] for line in loads] == ["v", "g", "u"]
    assert len(stores) == 2
    assert "t = silu(g) * v; y = t * u + u; z = t ** 2" in (
        ast.get_docstring(ast.parse(source)) or ""
    )


def test_the_arithmetic_reads_like_the_expression() -> None:
    program = parse_program("gelu(x) * scale + residual", {"scale": 1.7})
    lines = [line.strip() for line in program_source(program, DType.BF16).splitlines()]
    start = lines.index("t0 = fn.gelu(x)")
    assert lines[start : start + 3] == ["t0 = fn.gelu(x)", "t1 = t0 * 1.7", "y = t1 + residual"]


@pytest.mark.parametrize(
    "text",
    [
        "y + tl",
        "fn * block + first + elements + place + left",
        "x_ptr + x + t0 + t1",
        "device + row + column + rows + program + MASKED + BLOCK",
        "y = x; y_ptr = x + 1",
    ],
)
@pytest.mark.parametrize("vectors", [(), ("v",)])
def test_no_name_means_two_things(text: str, vectors: tuple[str, ...]) -> None:
    program = parse_program(text + " + v" * len(vectors), {}, vectors)
    source = program_source(program, DType.FP32)
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef):
            names = [argument.arg for argument in function.args.args]
            assert len(set(names)) == len(names)
            assigned = [
                target.id
                for each in ast.walk(function)
                if isinstance(each, ast.Assign)
                for target in each.targets
                if isinstance(target, ast.Name)
            ]
            assert not {*assigned} & {*names, "tl", "fn", "block"}
            assert len(set(assigned)) == len(assigned)


def test_no_torch_and_no_triton_are_needed() -> None:
    program = (
        "import sys\n"
        "sys.modules['torch'] = sys.modules['triton'] = None\n"
        "from gatefuse_kernels.expression import parse_program\n"
        "from gatefuse_kernels.expression.triton_source import program_source\n"
        "from gatefuse_kernels.shapes import DType\n"
        "print(program_source(parse_program('x * 2 + 3', {}), DType.BF16))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "y = t0 + 3.0" in result.stdout
