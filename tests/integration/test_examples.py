"""The examples, run as their users run them, against a real server."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.integration.harness import CHECKPOINT, REPOSITORY, Service, Start

pytestmark = pytest.mark.slow

EXAMPLES = REPOSITORY / "examples"
CPP_TOOLS = ("g++", "make", "pkg-config", "protoc", "grpc_cpp_plugin")


@pytest.fixture(scope="module")
def service(start: Start) -> Service:
    model = {"name": "llama-ffn", "checkpoint": str(CHECKPOINT), "backend": "fused"}
    gate = {
        "name": "silu-gate",
        "kind": "elementwise",
        "expression": "t = silu(g)\ny = t * u",
        "columns": 2048,
    }
    return start({"device": "cpu", "models": [model, gate]})


def _run(*command: str) -> str:
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=500)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.parametrize("way", [[], ["--stream"]], ids=["unary", "stream"])
def test_transformers_generate(service: Service, way: list[str]) -> None:
    script = str(EXAMPLES / "transformers_generate.py")
    where = ["--url", service.url, "--checkpoint", str(CHECKPOINT), *way]
    output = _run(sys.executable, script, *where)
    assert output.splitlines()[-1] == f"4 MLPs on {service.url}: the same"


def test_fan_out(service: Service) -> None:
    script = str(EXAMPLES / "fan_out.py")
    output = _run(sys.executable, script, "--url", service.url, "--callers", "9", "--rows", "3")
    assert output.startswith("9 callers, 4 layers, 3 rows each\n")
    average = float(output.rpartition(": ")[2].split()[0])
    assert 3 <= average <= 27


@pytest.mark.timeout(600)  # a compiler, on a machine that may be busy
def test_generated_cpp_client(service: Service, tmp_path: Path) -> None:
    missing = [tool for tool in CPP_TOOLS if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed: see examples/README.md")
    build = tmp_path / "build"
    _run(
        "make",
        "-C",
        str(EXAMPLES / "cpp"),
        f"BUILD={build}",
        "CXXFLAGS=-std=c++17 -O0 -Wall -Wextra",
    )
    output = _run(str(build / "infer"), service.url, "silu-gate")
    elements = 3 * 2048
    assert [line.split(",")[0] for line in output.splitlines()] == [
        f"{datatype}: {elements} of {elements} elements right" for datatype in ("FP32", "BF16")
    ]
    refused = subprocess.run(
        [str(build / "infer"), service.url, "absent"], capture_output=True, text=True, check=False
    )
    assert refused.returncode == 1
    assert "no model is named" in refused.stderr
