"""Chains on a real GPU: small tensors, every form, launches as the profiler sees them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from gatefuse_kernels.bench.chains.cases import CHAINS, OWN, Chain
from gatefuse_kernels.bench.chains.measuring import ChainBench
from gatefuse_kernels.bench.chains.options import ChainOptions
from gatefuse_kernels.bench.chains.results import COMPILED, EAGER, FUSED
from gatefuse_kernels.bench.chains.run import run_chains
from gatefuse_kernels.bench.errors import WrongAnswerError
from gatefuse_kernels.bench.results import State
from gatefuse_kernels.shapes import DType

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning"),
]

OWN_CHAIN = Chain(OWN, "a = silu(g) * u; b = max(a, w) - u", vectors=("w",))
NAMED = tuple(chain for chain in CHAINS if chain.name in ("twelve_ops", "gelu_residual"))


def test_a_run() -> None:
    options = ChainOptions((*NAMED, OWN_CHAIN), (DType.BF16, DType.FP32), 3_000_000, 20)
    said: list[str] = []
    report = run_chains(options, said.append, lambda report: None)
    assert len(report.results) == 6
    assert report.problems == ()
    for result in report.results:
        assert result.launches == {FUSED: 1, COMPILED: 1, EAGER: result.ops}, result.title
        assert {peer.state for peer in result.peers.values()} == {State.OK}, said
        assert (result.shorter is not None) == (result.chain.name == "twelve_ops")
        assert result.traffic[FUSED].passes < result.traffic[EAGER].passes
    profiled = {(check.title, check.form): check.profiled for check in report.launches}
    assert profiled["gelu_residual bf16", FUSED] == 1
    assert profiled["gelu_residual bf16", EAGER] == 3


def test_a_wrong_answer_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = ChainBench(
        NAMED[0],
        DType.FP32,
        ChainOptions(elements=300_000, rounds=10),
        lambda line: None,
        torch.device("cuda"),
    )
    right = bench._fused

    def wrong(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        right(inputs, outputs)
        for output in outputs:
            output.mul_(1.01)

    monkeypatch.setattr(bench, "_fused", wrong)
    with torch.no_grad(), pytest.raises(WrongAnswerError, match="twelve_ops fp32: the fused form"):
        bench.measure()
