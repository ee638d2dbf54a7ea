"""What the compiler makes of the explained kernels, for devices that are not here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

# The compiler must not be replaced by the interpreter, so each runs in a process of its own.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[3]


def explained(*arguments: str) -> dict[str, list[dict[str, object]]]:
    """The compiled kernels by backend, at the first size."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment.setdefault("TRITON_CACHE_DIR", str(ROOT / ".cache" / "triton"))
    command = [sys.executable, "-m", "gatefuse.cli", "explain", *arguments, "--json"]
    result = subprocess.run(
        [*command, "--no-measure"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=True,
    )
    # At the last row count, if there are several.
    point = json.loads(result.stdout)["points"][-1]
    return {form["backend"]: form["compiled"] for form in point["backends"]}


def test_an_mlps_kernels() -> None:
    found = explained(
        *("--hidden", "4096", "--intermediate", "14336", "--rows", "1,2", "--device", "h200")
    )
    # Two rows take tiles that one row took before them.
    assert [each["kernel"] for each in found["fused"]] == [
        "swiglu_gate_up_streamed",
        "swiglu_down_streamed",
    ]
    assert [each["kernel"] for each in found["textbook"]] == ["swiglu_textbook"]
    assert not found["eager"]
    for each in (*found["fused"], *found["textbook"]):
        assert each["stack_bytes"] == 0
        assert isinstance(each["programs_per_multiprocessor"], int)
        assert each["programs_per_multiprocessor"] > 0


@pytest.mark.parametrize("device", ["h200", "l4"])
def test_a_programs_kernel(device: str) -> None:
    found = explained(
        "--expression", "gelu(x) * s + residual", "--vectors", "s", "--device", device
    )
    (each,) = found["fused"]
    assert (each["kernel"], each["stack_bytes"], each["shared_bytes"]) == (
        "fused_elementwise",
        0,
        0,
    )
    assert not found["compiled"]
