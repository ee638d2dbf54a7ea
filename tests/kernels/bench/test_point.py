"""The order of things at one point, with graphs that are no graphs: each replay is a call on the CPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NoReturn

import pytest
import torch

from gatefuse_kernels.bench import point as point_module
from gatefuse_kernels.bench.capture import Form, Forward, Graph
from gatefuse_kernels.bench.copies import Copy, make_copy
from gatefuse_kernels.bench.errors import WrongAnswerError
from gatefuse_kernels.bench.options import Options
from gatefuse_kernels.bench.peers import Peer, all_peers
from gatefuse_kernels.bench.point import PointBench
from gatefuse_kernels.bench.results import Point, Spread, State
from gatefuse_kernels.bench.timing import Pace, spread
from gatefuse_kernels.plan import Algorithm
from gatefuse_kernels.reference import activate, eager_mlp
from gatefuse_kernels.shapes import DType, MlpShape
from gatefuse_kernels.weights.packed import MlpWeights

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")

SHAPE = MlpShape(130, 300)

Answer = Callable[[torch.Tensor, MlpWeights], torch.Tensor]


def rounded_twice(x: torch.Tensor, weights: MlpWeights) -> torch.Tensor:
    """What our kernels do: float32 sums, h and the output rounded once each."""
    gate, up = x.float() @ weights.gate.float().t(), x.float() @ weights.up.float().t()
    h = (activate(gate, weights.activation) * up).to(x.dtype)
    return (h.float() @ weights.down.float().t()).to(x.dtype)


def last_row_unwritten(x: torch.Tensor, weights: MlpWeights) -> torch.Tensor:
    answer = rounded_twice(x, weights)
    answer[-1] = math.nan
    return answer


def unlike_each_time(x: torch.Tensor, weights: MlpWeights) -> torch.Tensor:
    answer = rounded_twice(x, weights)
    answer[0, 0] *= 1 + torch.randint(3, ()) / 128
    return answer


def fake_form(
    forwards: Sequence[Forward], x: torch.Tensor, algorithm: Algorithm | None = None
) -> Form:
    def graph(forward: Forward) -> Graph:
        answer = torch.empty_like(x)
        return Graph(lambda: answer.copy_(forward(x)), answer, 2)

    return Form(tuple(graph(forward) for forward in forwards), {}, algorithm)


class FakePeer:
    """A competitor that computes in its own way."""

    version = "1.0"

    def __init__(self, name: str, answer: Answer) -> None:
        self.name = name
        self._answer = answer

    def bind(self, weights: MlpWeights, rows: int) -> Forward:
        return lambda x: self._answer(x, weights)


class BrokenPeer:
    name = "compiled"
    version = "1.0"

    def bind(self, weights: MlpWeights, rows: int) -> NoReturn:
        raise MemoryError("/secret/path")


class Bench:
    """A `PointBench` of two equal copies whose turns take a millisecond for each call."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        torch.manual_seed(0)
        first, second = (make_copy(SHAPE, DType.BF16, torch.device("cpu")) for _ in range(2))
        first.memory.normal_(0, 0.06)
        second.memory.copy_(first.memory)
        self.copies: list[Copy] = [first, second]
        self.said: list[str] = []
        self.ours: Answer = rounded_twice
        self.algorithm = Algorithm.TWO_LAUNCH
        monkeypatch.setattr(point_module, "capture_ours", self._capture_ours)
        monkeypatch.setattr(point_module, "capture_form", fake_form)
        monkeypatch.setattr(point_module, "take_turns", self._take_turns)
        monkeypatch.setattr(PointBench, "_host_time", lambda bench, x, device_us: spread([9.0] * 2))

    def measure(self, rows: int, *peers: Peer, deterministic: bool = False) -> Point:
        options = Options(deterministic=deterministic, autotune_rows=(16,))
        named = {peer.name: peer for peer in peers}
        bench = PointBench(self.copies, [lambda: None], named, options, self.said.append)
        return bench.measure(rows)

    def _capture_ours(
        self, copies: Sequence[Copy], x: torch.Tensor, *, deterministic: bool = False
    ) -> Form:
        def forward(copy: Copy) -> Forward:
            return lambda given: self.ours(given, copy.weights)

        return fake_form([forward(copy) for copy in copies], x, self.algorithm)

    def _take_turns(self, forms: Sequence[Sequence[object]], pace: Pace) -> list[Spread]:
        return [spread([1000.0 * (1 + number)] * 2) for number, _ in enumerate(forms)]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


@pytest.mark.parametrize("rows", [1, 7, 32, 70])
def test_a_point(bench: Bench, rows: int) -> None:
    eager = FakePeer("eager", eager_mlp)
    found = bench.measure(rows, eager, deterministic=True)
    assert (found.shape, found.rows) == (SHAPE, rows)
    assert found.floor.median_us == 1000
    assert found.ours.time.median_us == 2000
    assert found.deterministic is not None
    assert found.deterministic.time.median_us == 3000
    assert found.peers_us == {"eager": 4000}
    assert found.is_repeatable
    assert found.ours.error < 2.6e-3 * 1.5


def test_a_wrong_answer_of_ours_ends_the_run(bench: Bench) -> None:
    bench.ours = last_row_unwritten
    with pytest.raises(WrongAnswerError, match="ours, 130x300, 70 rows: the answer misses"):
        bench.measure(70)


def test_the_library_may_round_as_eager_does(bench: Bench) -> None:
    bench.ours = eager_mlp
    with pytest.raises(WrongAnswerError):
        bench.measure(70)
    bench.algorithm = Algorithm.LIBRARY
    found = bench.measure(70)
    assert 2.6e-3 * 1.05 < found.ours.error < 4.2e-3
    bench.ours = last_row_unwritten
    with pytest.raises(WrongAnswerError, match="ours, 130x300, 70 rows: the answer misses"):
        bench.measure(70)


def test_an_answer_that_changes_is_noticed(bench: Bench) -> None:
    bench.ours = unlike_each_time
    assert not bench.measure(7).is_repeatable


def test_a_peer_that_answers_wrongly_does_not_count(bench: Bench) -> None:
    found = bench.measure(70, FakePeer("merged", last_row_unwritten))
    assert found.peers["merged"].state is State.WRONG
    assert found.peers["merged"].reason == "error inf"
    assert found.peers_us == {}


def test_a_peer_that_breaks_does_not_end_the_run(bench: Bench) -> None:
    found = bench.measure(2, BrokenPeer(), FakePeer("eager", eager_mlp))
    assert found.peers["compiled"].state is State.FAILED
    assert found.peers["compiled"].reason == "MemoryError", "no text: it could name a path"
    assert list(found.peers_us) == ["eager"]
    assert bench.said == ["compiled, 2 rows: MemoryError: /secret/path"]


def test_peers_that_do_not_run(bench: Bench) -> None:
    tuned = FakePeer("max_autotune", eager_mlp)
    found = bench.measure(2, tuned, all_peers()["liger"])
    assert {name: peer.state for name, peer in found.peers.items()} == {
        "max_autotune": State.NOT_RUN,
        "liger": State.NOT_INSTALLED,
    }
    assert bench.measure(16, tuned).peers["max_autotune"].state is State.OK


@pytest.mark.parametrize("name", ["eager", "compiled"])
def test_peers_that_run_without_a_gpu_are_right(bench: Bench, name: str) -> None:
    found = bench.measure(5, all_peers()[name])
    assert found.peers[name].state is State.OK, bench.said
