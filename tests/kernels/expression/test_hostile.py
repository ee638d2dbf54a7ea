"""Ten thousand mutated texts: each is refused with words or means what Python means by it."""

from __future__ import annotations

import ast
import random
import re
import sys
from typing import Any

import pytest
import torch
from tests.kernels.elementwise.truth import evaluate_exactly
from torch.nn import functional

from gatefuse_kernels.expression import OPERATIONS, ExpressionError, Program, parse_program

SEEDS = (
    "gelu(x) * scale + residual",
    "t = silu(g); y = t * u",
    "x * 2 + 3",
    "where(0 < x <= 1.5, x ** 2, -x)\n",
    "a = min(x, 1)\nb = max(a, -1e3)\nc = clamp(b, .5, 0x10) / 3",
    "softplus(abs(exp(log(sqrt(rsqrt(sigmoid(tanh(erf(relu(x)))))))))) - gelu_tanh(u)",
    "fp32(x) + 1_000 * 2 ** -3",
    "__import__('os').system('id')",
    "().__class__.__bases__[0].__subclasses__()",
    "[x for x in (1).__class__.__mro__]",
    "(lambda: exec('import os'))()",
    "f'{x!r}' if open('a') else x",
)
PIECES = (
    *"+-*/%()=<>!,;.:[]{}@#\\'\"`~^&| \n\t\r\0_0123456789eExjgu",
    *(
        "**",
        "//",
        ":=",
        "->",
        "==",
        "lambda ",
        " if ",
        " else ",
        " for x in ",
        "import os",
        "await ",
    ),
    *(
        "__import__",
        "eval(",
        "exec(",
        "os.system",
        "scale",
        "gelu",
        "where",
        "True",
        "None",
        "1e999",
    ),
    *(
        "9" * 50,
        "(" * 60,
        "-" * 150,
        "é",
        "\u202e",
        "ﬁ",
        "𝐱",
        "\ud800",
        "0b",
        "x=",
        "y =",
        "*x",
        "**x",
    ),
)
FRIENDLY = (
    *"+-*/<>xug12.5 ",
    *(" + ", "gelu(", ")", "(x)", ", ", "min(x, u)", "\n", "; ", "z = ", "scale", "** 2"),
)
WATCHED = {"import", "open", "exec", "os.system", "subprocess.Popen", "socket.connect", "os.exec"}

_seen: list[str] = []
_is_watching = False


def _watch(event: str, arguments: tuple[object, ...]) -> None:
    # Python looks for the line of a syntax error in a file that its parser calls <unknown>.
    if _is_watching and event in WATCHED and arguments[0] != "<unknown>":
        _seen.append(event)


def mutate(text: str, generator: random.Random) -> str:
    pieces = generator.choice((PIECES, FRIENDLY))
    for _ in range(generator.randint(1, 4)):
        place = generator.randint(0, len(text))
        end = min(len(text), place + generator.choice((0, 0, 1, 1, 3, 10)))
        text = text[:place] + generator.choice((*pieces, "", text[place:end] * 2)) + text[end:]
    return text


def test_ten_thousand_hostile_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = random.Random(4)
    sys.addaudithook(_watch)
    parsed: dict[str, Program] = {}
    refused: list[str] = []
    for _ in range(10_000):
        text = mutate(generator.choice(SEEDS), generator)
        monkeypatch.setattr(sys.modules[__name__], "_is_watching", True)
        try:
            parsed[text] = parse_program(text, {"scale": 1.7})
        except ExpressionError as error:
            refused.append(str(error))
        finally:
            monkeypatch.setattr(sys.modules[__name__], "_is_watching", False)
    assert _seen == []
    places = re.compile(r"(line \d+, )?column \d+: |the expression has \d+ characters")
    assert all(map(places.match, refused))
    assert len(parsed) > 300
    for text, program in parsed.items():
        assert {step.op for step in program.steps} <= set(OPERATIONS)
        assert_means_what_python_means(text, program)


def assert_means_what_python_means(text: str, program: Program) -> None:
    tensors: dict[str, Any] = {
        name: torch.tensor(0.3 + 0.37 * place, dtype=torch.float64)
        for place, name in enumerate(program.inputs)
    }
    expected = by_python(program.text, tensors, program.outputs)
    for name, value in zip(program.outputs, evaluate_exactly(program, tensors), strict=True):
        torch.testing.assert_close(
            torch.as_tensor(value, dtype=torch.float64),
            torch.as_tensor(expected[name], dtype=torch.float64),
            rtol=1e-6,
            atol=1e-30,
            equal_nan=True,
            msg=lambda message: f"{text!r}: {message}",
        )


def by_python(text: str, tensors: dict[str, Any], outputs: tuple[str, ...]) -> dict[str, Any]:
    """Python's own reading of a text that the grammar let through."""
    tree = ast.parse(text)
    last = tree.body[-1]
    if isinstance(last, ast.Expr):
        target = ast.Name("y", ast.Store())
        tree.body[-1] = ast.Assign([target], last.value)
    # A name that is read nowhere that matters is no input, but Python wants a value.
    unknown = {each.id: 1.0 for each in ast.walk(tree) if isinstance(each, ast.Name)}
    names = unknown | PYTHON | {"scale": 1.7} | tensors
    exec(compile(ast.fix_missing_locations(tree), "<accepted>", "exec"), names)
    return {name: names[name] for name in outputs}


def _double(function: Any) -> Any:
    def called(*operands: Any) -> Any:
        return function(*(torch.as_tensor(each, dtype=torch.float64) for each in operands))

    return called


PYTHON: dict[str, Any] = {
    "min": _double(torch.minimum),
    "max": _double(torch.maximum),
    "clamp": _double(torch.clamp),
    "gelu": _double(functional.gelu),
    "gelu_tanh": _double(lambda x: functional.gelu(x, approximate="tanh")),
    "silu": _double(functional.silu),
    "softplus": _double(functional.softplus),
    "where": lambda condition, x, z: x if condition else z,
    "fp32": _double(lambda x: x.float().double()),
    "bf16": _double(lambda x: x.float().bfloat16().double()),
    "fp16": _double(lambda x: x.float().half().double()),
    **{
        name: _double(getattr(torch, name))
        for name in ("abs", "exp", "log", "sqrt", "rsqrt", "sigmoid", "tanh", "erf", "relu")
    },
}
