"""The order of a run, and how it ends; no GPU at hand."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest
import torch
from tests.kernels.bench.chains.examples import chain_of, result

from gatefuse_kernels.bench.chains import run as run_module
from gatefuse_kernels.bench.chains.cases import Chain
from gatefuse_kernels.bench.chains.options import ChainOptions
from gatefuse_kernels.bench.chains.results import ChainReport, ChainResult, LaunchCheck
from gatefuse_kernels.bench.chains.run import run_chains
from gatefuse_kernels.bench.errors import NoMemoryError
from gatefuse_kernels.shapes import DType

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")

CHAINS = (chain_of("one_op"), chain_of("silu_gate"))


class FakeBench:
    """Answers with made-up figures, and notes the order of what it is asked."""

    asked: list[str]

    def __init__(self, chain: Chain, dtype: DType, *_: Any) -> None:
        self._chain, self._dtype = chain, dtype

    def measure(self) -> ChainResult:
        self.asked.append(f"measure {self._chain.name} {self._dtype}")
        return result(self._chain.name, 300.0, dtype=self._dtype)

    def profile(self, found: ChainResult) -> tuple[LaunchCheck, ...]:
        self.asked.append(f"profile {found.title}")
        return (LaunchCheck(found.title, "fused", 1, 1),)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(run_module, "run_facts", lambda peers: {"l2_bytes": "60000000"})
    monkeypatch.setattr(run_module, "ChainBench", FakeBench)
    monkeypatch.setattr(FakeBench, "asked", [], raising=False)
    return FakeBench.asked


def test_the_profiler_comes_when_all_is_measured(asked: list[str]) -> None:
    kept: list[ChainReport] = []
    options = ChainOptions(CHAINS, (DType.BF16,))
    report = run_chains(options, lambda line: None, kept.append)
    assert asked == [
        "measure one_op bf16",
        "measure silu_gate bf16",
        "profile one_op bf16",
        "profile silu_gate bf16",
    ]
    assert [len(each.results) for each in kept] == [1, 2]
    assert [check.title for check in report.launches] == ["one_op bf16", "silu_gate bf16"]
    assert report.not_measured == ()


def test_every_chain_in_every_type(asked: list[str]) -> None:
    report = run_chains(ChainOptions(CHAINS), lambda line: None, lambda report: None)
    assert [found.title for found in report.results] == [
        "one_op bf16",
        "silu_gate bf16",
        "one_op fp32",
        "silu_gate fp32",
    ]


def test_a_run_out_of_time_says_what_it_left_out(asked: list[str]) -> None:
    options = ChainOptions(CHAINS, (DType.FP32,), budget_s=1e-9)
    report = run_chains(options, lambda line: None, lambda report: None)
    assert report.not_measured == ("one_op fp32", "silu_gate fp32")
    assert asked == []


def test_tensors_that_l2_holds_are_named(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    options = ChainOptions(CHAINS[:1], (DType.FP32,))
    run_chains(options, said.append, lambda report: None)
    assert len(said) == 1
    monkeypatch.setattr(run_module, "run_facts", lambda peers: {"l2_bytes": "400000000"})
    run_chains(options, said.append, lambda report: None)
    assert said[-1] == "one_op fp32: L2 holds much of it: these are no times of memory"


def test_too_little_memory_says_for_what(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: FakeBench) -> NoReturn:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB. GPU 0 has")

    monkeypatch.setattr(FakeBench, "measure", fail)
    with pytest.raises(NoMemoryError, match=r"^one_op bf16, 100000000 elements: the GPU has too"):
        run_chains(ChainOptions(CHAINS), lambda line: None, lambda report: None)
