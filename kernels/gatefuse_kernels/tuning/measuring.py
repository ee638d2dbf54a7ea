"""The stopwatch of a real GPU: CUDA graphs, weights rotated so that L2 cannot hold them."""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import TypeVar

import torch

from gatefuse_kernels import reference
from gatefuse_kernels.bench.copies import weight_copies
from gatefuse_kernels.bench.timing import Pace, take_turns
from gatefuse_kernels.plan import Algorithm, Plan, Tile
from gatefuse_kernels.swiglu.launcher import Launcher
from gatefuse_kernels.tuning.compiling import Compilers, Problem, launch_tile
from gatefuse_kernels.tuning.stopwatch import (
    LOOKED_AT_CLOSELY,
    Launch,
    Timed,
    WrongAnswerError,
)
from gatefuse_kernels.weights.packed import MlpWeights

Key = TypeVar("Key")

_Call = Callable[[Launcher], None]
"""Computes with one copy of the weights."""

_FIRST_LOOK = Pace(rounds=10, seconds=1.0, least=4)
_CLOSE_LOOK = Pace(rounds=100, seconds=1.0, least=20)

_NEAR = 0.02
"""Relative error of one launch beyond which a tile is broken: several times what rounding does."""

_COMPARED_ROWS = 200
"""Two row tiles and part of one, in which tiles are held against each other."""

_CHECKED_ROWS = 64
"""Rows at either end of a batch that are held against float64."""


class GpuStopwatch:
    """Measures one MLP on one CUDA device."""

    def __init__(self, problem: Problem, compilers: Compilers, say: Callable[[str], None]) -> None:
        """Fill the device's memory with several copies of random weights.

        Args:
            problem: the MLP.
            compilers: compile candidates before they are timed.
            say: told what cannot be used.
        """
        self._problem = problem
        self._compilers = compilers
        self._say = say
        device = torch.device(problem.device)
        self._weights = [
            copy.weights for copy in weight_copies(problem.shape, problem.dtype, device)
        ]
        self._stream = torch.cuda.Stream(device)
        self._launchers = [Launcher(weights) for weights in self._weights]
        # Of this stopwatch's own, so that it ends with it.
        self._case = lru_cache(maxsize=2)(partial(_launch_case, self._weights[0]))
        self._unusable: dict[tuple[Launch, Tile], str] = {}

    def tiles(self, launch: Launch, rows: int, tiles: Sequence[Tile]) -> list[Timed]:
        """See `Stopwatch`."""
        self._compile(launch, tiles)
        x, exact = self._case(launch, rows)
        # All write to the same memory: at many rows an output each would be more than there is.
        out = torch.empty_like(exact, dtype=x.dtype)
        graphs: dict[Tile, Callable[[], object]] = {}
        for tile in tiles:
            call = partial(_launch, launch, tile, x, out)
            if self._unusable[launch, tile] or self._is_wrong(call, out, exact, tile):
                continue
            graphs[tile] = self._captured(call)
        times = _times(graphs, _FIRST_LOOK)
        best = sorted(times, key=times.__getitem__)[:LOOKED_AT_CLOSELY]
        closer = _times({tile: graphs[tile] for tile in best}, _CLOSE_LOOK)
        timed = {**times, **closer}
        copies = len(self._weights)
        # What a first look left out stays behind what was looked at closely.
        order = sorted(timed, key=lambda tile: (tile not in closer, timed[tile]))
        return [Timed(tile, timed[tile] / copies) for tile in order]

    def plans(self, rows: int, plans: Sequence[Plan]) -> list[float]:
        """See `Stopwatch`."""
        self._compilers.prepare(self._problem, rows, plans)
        x = _rows(rows, self._weights[0])
        out = torch.empty_like(x)
        ends = torch.cat((x[:_CHECKED_ROWS], x[_CHECKED_ROWS:][-_CHECKED_ROWS:]))
        truth = reference.Truth.of(ends, self._weights[0])
        graphs = {}
        for number, plan in enumerate(plans):
            call = partial(_run, plan, x, out)
            out.fill_(torch.nan)
            call(self._launchers[0])
            answer = torch.cat((out[:_CHECKED_ROWS], out[_CHECKED_ROWS:][-_CHECKED_ROWS:]))
            _check(plan, truth.accuracy(answer))
            graphs[number] = self._captured(call)
        times = _times(graphs, _CLOSE_LOOK)
        return [times[number] / len(self._weights) for number in range(len(plans))]

    def same_bits(self, launch: Launch, tiles: Sequence[Tile]) -> bool:
        """See `Stopwatch`."""
        x, exact = self._case(launch, _COMPARED_ROWS)
        answers = [torch.full_like(exact, torch.nan, dtype=x.dtype) for _ in tiles]
        for tile, answer in zip(tiles, answers, strict=True):
            launch_tile(launch, self._launchers[0], x, answer, tile)
        return same_bytes(answers)

    def _compile(self, launch: Launch, tiles: Sequence[Tile]) -> None:
        new = [tile for tile in tiles if (launch, tile) not in self._unusable]
        if not new:
            return
        found = self._compilers.faults(self._problem, launch, new)
        for tile, fault in zip(new, found, strict=True):
            self._unusable[launch, tile] = fault
        useless = sum(bool(fault) for fault in found)
        self._say(f"{launch}: {len(new)} tiles compiled, {useless} of them of no use")

    def _is_wrong(self, call: _Call, out: torch.Tensor, exact: torch.Tensor, tile: Tile) -> bool:
        out.fill_(torch.nan)
        call(self._launchers[0])
        error = reference.relative_error(out, exact)
        if error < _NEAR:
            return False
        self._say(f"{tile} answers wrongly at {out.shape[0]} rows: relative error {error:.2g}")
        return True

    def _captured(self, call: _Call) -> Callable[[], object]:
        """The replay of one graph that calls once with each copy of the weights."""
        stream = self._stream
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            # On this very stream, as libraries and split sums keep memory for each stream, which
            # must be there, and be zero, before anything is captured.
            self._call_with_each(call)
            stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                self._call_with_each(call)
        return graph.replay

    def _call_with_each(self, call: _Call) -> None:
        for launcher in self._launchers:
            call(launcher)


def same_bytes(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether all hold the same bits; for floats zeros of both signs are equal, and NaN is not itself."""
    first, *others = (tensor.view(torch.uint8) for tensor in tensors)
    return all(torch.equal(first, other) for other in others)


def _launch(
    launch: Launch, tile: Tile, x: torch.Tensor, out: torch.Tensor, launcher: Launcher
) -> None:
    launch_tile(launch, launcher, x, out, tile)


def _run(plan: Plan, x: torch.Tensor, out: torch.Tensor, launcher: Launcher) -> None:
    launcher.run(plan, x, out)


def _times(graphs: dict[Key, Callable[[], object]], pace: Pace) -> dict[Key, float]:
    """Median microseconds of each graph."""
    if not graphs:
        return {}
    spreads = take_turns([[graph] for graph in graphs.values()], pace)
    return {key: spread.median_us for key, spread in zip(graphs, spreads, strict=True)}


def _check(plan: Plan, accuracy: reference.Accuracy) -> None:
    # The library rounds gate and up on their way through memory, as eager does.
    eager_like = plan.algorithm is Algorithm.LIBRARY
    is_right = (
        accuracy.error <= 1.05 * accuracy.eager_error if eager_like else accuracy.is_fused_grade
    )
    if not is_right:
        raise WrongAnswerError(f"{plan} answers wrongly: {accuracy}")


def _launch_case(
    weights: MlpWeights, launch: Launch, rows: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Input of one launch, and its answer in float32, which shows a broken tile."""
    x = _rows(rows, weights)
    gate, up = (x.float() @ half.float().t() for half in (weights.gate, weights.up))
    h = reference.activate_(gate, weights.activation).mul_(up)
    if launch is Launch.GATE_UP:
        return x, h
    rounded = h.to(x.dtype)
    return rounded, rounded.float() @ weights.down.float().t()


def _rows(rows: int, weights: MlpWeights) -> torch.Tensor:
    generator = torch.Generator(weights.device).manual_seed(rows)
    x = torch.randn(rows, weights.shape.hidden, generator=generator, device=weights.device)
    return x.to(weights.down.dtype)
