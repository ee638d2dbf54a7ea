"""Which load tests the demo runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gatefuse.commands import demo
from gatefuse.commands.demo import load_tests
from gatefuse.config import parse_config

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


@pytest.mark.parametrize(
    ("ended", "status"), [([0, 0], 0), ([0, 1], 1), ([2, 0], 2), ([0, -9], -9)], ids=str
)
def test_no_load_test_fails_unseen(
    ended: list[int], status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor one that was killed, whose status is below 0."""

    @contextmanager
    def served(config: Path) -> Iterator[str]:
        yield "localhost:1"

    config = tmp_path / "config.yaml"
    config.write_text(
        "models: [{name: double, kind: elementwise, expression: x * 2},"
        " {name: triple, kind: elementwise, expression: x * 3}]"
    )
    statuses = iter(ended)
    monkeypatch.setattr(demo, "_served", served)
    monkeypatch.setattr(demo, "_load_test", lambda url, test: next(statuses))
    assert demo.run(config, tmp_path / "exact", tmp_path / "demo.html", 1.0) == status
