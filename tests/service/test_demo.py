"""Which load tests the demo runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gatefuse.config import parse_config
from gatefuse.demo import load_tests

RANDOM = {"hidden": 8, "intermediate": 16}


def _chain(name: str, expression: str, **keys: Any) -> dict[str, Any]:
    return {"name": name, "kind": "elementwise", "expression": expression, **keys}


def test_models_that_compute_the_same_are_compared() -> None:
    raw = [
        {"name": "ffn", "random": RANDOM},
        _chain("double", "x * 2"),
        {"name": "ffn-eager", "like": "ffn", "backend": "eager"},
        _chain("gate", "silu(g) * u"),
        _chain("double-eager", "x*k", constants={"k": 2}, backend="eager"),
        _chain("gate-eager", "silu(g) * u", backend="eager"),
        _chain("triple", "x * k", constants={"k": 3}),
    ]
    models = parse_config({"models": raw}, Path()).models
    tests = load_tests(models, Path("exact"), Path("reports/demo.html"), 4.0)
    assert [(test.models, test.report.name) for test in tests] == [
        (("ffn", "ffn-eager"), "demo.html"),
        (("double",), "demo-double.html"),
        (("gate", "gate-eager"), "demo-gate.html"),
        (("double-eager",), "demo-double-eager.html"),
        (("triple",), "demo-triple.html"),
    ]
    assert [("--exact" in test.arguments) for test in tests] == [True, *[False] * 4]
    assert [test.arguments[-1] for test in tests[1:]] == ["2.0"] * 4
    assert load_tests(models[3:4], Path("exact"), Path("demo.html"), 4.0)[0].models == ("gate",)
