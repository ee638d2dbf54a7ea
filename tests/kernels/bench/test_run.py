"""How a run ends where the GPU has too little memory; no GPU at hand."""

from __future__ import annotations

from typing import NoReturn

import pytest
import torch

from gatefuse_kernels.bench import run as run_module
from gatefuse_kernels.bench.errors import NoMemoryError
from gatefuse_kernels.bench.options import Options
from gatefuse_kernels.bench.run import run_bench
from gatefuse_kernels.shapes import MlpShape

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")

OPTIONS = Options(shapes=(MlpShape(8, 16),), rows=(1,), peers=(), elements=900)
TORCHS = (
    "CUDA out of memory. Tried to allocate 1676.38 GiB. GPU 0 has a total capacity of 139.80 GiB "
    "of which 138.62 GiB is free. Of the allocated memory 0 bytes is allocated by PyTorch."
)


def run_with(error: Exception, monkeypatch: pytest.MonkeyPatch, fails_at: str) -> None:
    def fail(*_: object) -> NoReturn:
        raise error

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(run_module, "run_facts", lambda peers: {})
    monkeypatch.setattr(run_module, "measure_gate", lambda *_: None)
    monkeypatch.setattr(run_module, fails_at, fail)
    run_bench(OPTIONS, lambda line: None, lambda report: None)


def test_it_says_for_what(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NoMemoryError) as caught:
        run_with(torch.OutOfMemoryError(TORCHS), monkeypatch, "measure_gate")
    assert str(caught.value) == (
        "the elementwise gate of 900 elements in bf16: the GPU has too little memory: "
        "CUDA out of memory. Tried to allocate 1676.38 GiB."
    )


def test_the_drivers_refusal_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    error = RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously")
    with pytest.raises(NoMemoryError, match=r"memory: CUDA error: out of memory$"):
        run_with(error, monkeypatch, "measure_gate")


def test_other_errors_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="an illegal memory access"):
        run_with(RuntimeError("CUDA error: an illegal memory access"), monkeypatch, "measure_gate")
