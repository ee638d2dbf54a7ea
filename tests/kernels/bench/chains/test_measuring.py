"""The order of things for one chain, with graphs that are no graphs: each replay is a call on the CPU."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

import pytest
import torch
from tests.kernels.bench.chains.examples import chain_of

from gatefuse_kernels.bench.chains import measuring as module
from gatefuse_kernels.bench.chains.cases import COLUMNS, OWN, Chain
from gatefuse_kernels.bench.chains.measuring import ChainBench
from gatefuse_kernels.bench.chains.options import ChainOptions
from gatefuse_kernels.bench.chains.results import COMPILED, EAGER, FUSED, LaunchCheck
from gatefuse_kernels.bench.errors import WrongAnswerError
from gatefuse_kernels.bench.results import Spread, State
from gatefuse_kernels.bench.timing import Call, Pace, spread
from gatefuse_kernels.elementwise import backends, build_elementwise
from gatefuse_kernels.shapes import DType

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")

CPU = torch.device("cpu")
Tensors = Sequence[torch.Tensor]


class Fakes:
    """What stands in for the GPU: forms take as many microseconds as their place in the turns."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.forms = 0
        self.said: list[str] = []
        self.copied: list[int] = []
        self.spoil: Callable[[torch.Tensor], object] = lambda output: None
        self.compile: Callable[..., object] = build_blocked
        # Without a compiler the fused form is torch's ops block by block: slow, and at once there.
        monkeypatch.setattr(backends, "has_cpp_compiler", lambda: False)
        monkeypatch.setattr(module, "capture_call", self._capture)
        monkeypatch.setattr(module, "take_turns", self._take_turns)
        monkeypatch.setattr(module, "copy_calls", self._copy_calls)
        monkeypatch.setattr(module, "captured_kernels", lambda call: ("one",))
        monkeypatch.setattr(module, "kernels_run", kernels_run)
        monkeypatch.setattr(module, "build_elementwise", self._build)
        monkeypatch.setattr(module, "compile_chain", lambda *given: self.compile(*given))
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)

    def bench(self, chain: Chain, dtype: DType = DType.FP32) -> ChainBench:
        options = ChainOptions(elements=3 * COLUMNS + 1)
        return ChainBench(chain, dtype, options, self.said.append, CPU)

    def _build(self, backend: str, *given: object, **named: object) -> object:
        # Eager counts in the ledger as on a GPU; blocks are one launch, as the fused kernel is.
        # Stands in for `build_elementwise`: whatever it is given is handed on.
        made = build_elementwise(backend, *given, **named)  # type: ignore[arg-type]
        if backend == "eager":
            return made

        def spoiled(inputs: Tensors, outputs: Tensors) -> None:
            made(inputs, outputs)
            for output in outputs:
                self.spoil(output)

        return spoiled

    def _capture(self, call: Call) -> Call:
        call()
        return call

    def _take_turns(self, forms: Sequence[Sequence[Call]], pace: Pace) -> list[Spread]:
        self.forms = len(forms)
        return [spread([float(place)] * 2) for place in range(1, len(forms) + 1)]

    def _copy_calls(self, memory: torch.Tensor) -> list[Call]:
        self.copied.append(memory.nbytes)
        return [lambda: None, lambda: None]


@contextmanager
def kernels_run() -> Iterator[Counter[str]]:
    yield Counter(["a", "a", "b"])


def build_blocked(program: object, dtype: DType, constants: Tensors) -> Callable[..., object]:
    def call(inputs: Tensors, outputs: Tensors) -> None:
        (x,), (y,) = inputs, outputs
        y.copy_(x * 2 + 3)

    return call


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Fakes:
    return Fakes(monkeypatch)


def test_every_form_has_its_own_time_and_the_copies_move_the_chains_bytes(fakes: Fakes) -> None:
    found = fakes.bench(chain_of("scale_shift")).measure()
    assert fakes.forms == 5
    assert found.rows == 3
    assert found.ours.time.median_us == 1
    assert found.peers_us == {COMPILED: 2, EAGER: 3}
    assert {name: time.median_us for name, time in found.copies.items()} == {
        "torch": 4,
        "triton": 5,
    }
    assert found.launches == {FUSED: 1, COMPILED: 1, EAGER: 2}
    moved = found.traffic[FUSED].bytes_moved
    assert (moved, found.traffic[EAGER].bytes_moved) == (2 * 12 * COLUMNS, 4 * 12 * COLUMNS)
    assert fakes.copied == [moved // 2]
    assert found.shorter is None


def test_the_shorter_chain_takes_turns_with_the_longer(fakes: Fakes) -> None:
    fakes.compile = lambda *_: failing
    found = fakes.bench(chain_of("twelve_ops")).measure()
    assert found.shorter is not None
    # Ours, eager, the shorter chain, two copies.
    assert (found.ours.time.median_us, found.shorter.median_us) == (1, 3)
    assert found.peers[COMPILED].state is State.FAILED
    assert found.peers[COMPILED].reason == "MemoryError"
    assert found.launches == {FUSED: 1, EAGER: 12}
    assert fakes.said == ["torch.compile, twelve_ops: MemoryError: too large"]


def failing(*_: object) -> NoReturn:
    raise MemoryError("too large")


def test_a_wrong_peer_has_no_time(fakes: Fakes) -> None:
    found = fakes.bench(chain_of("one_op")).measure()
    assert found.peers[COMPILED].state is State.WRONG
    assert found.peers_us == {EAGER: 2}


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda output: output.mul_(1.01), "scale_shift bf16: the fused form's error is"),
        (lambda output: output[-1, -1:].fill_(math.nan), "scale_shift bf16: the fused form's"),
        (lambda output: output.add_(torch.randn(1)), "two calls of the fused form gave different"),
    ],
)
def test_a_wrong_answer_of_ours_ends_the_run(
    fakes: Fakes, spoil: Callable[[torch.Tensor], object], text: str
) -> None:
    fakes.spoil = spoil
    with pytest.raises(WrongAnswerError, match=text):
        fakes.bench(chain_of("scale_shift"), DType.BF16).measure()


def test_each_form_that_ran_is_profiled(fakes: Fakes) -> None:
    bench = fakes.bench(chain_of("scale_shift"))
    assert bench.profile(bench.measure()) == (
        LaunchCheck("scale_shift fp32", FUSED, 1, 3),
        LaunchCheck("scale_shift fp32", COMPILED, 1, 3),
        LaunchCheck("scale_shift fp32", EAGER, 2, 3),
    )


def test_a_chain_with_columns_and_two_outputs(fakes: Fakes) -> None:
    fakes.compile = lambda *_: failing
    chain = Chain(OWN, "a = silu(g) * u; b = max(a, w) - u; c = a * 2", vectors=("w",))
    found = fakes.bench(chain).measure()
    assert found.traffic[FUSED].passes == 4
    assert found.launches[EAGER] == found.ops
