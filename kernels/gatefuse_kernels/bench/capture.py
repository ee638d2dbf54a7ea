"""CUDA graphs of the forms that are compared."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch

from gatefuse_kernels.backends import build_mlp
from gatefuse_kernels.bench.copies import Copy
from gatefuse_kernels.device_profile import profile_of
from gatefuse_kernels.launch.graphs import GraphedMlp
from gatefuse_kernels.launch.launches import capture_stream, kernel_names
from gatefuse_kernels.ledger import Ledger
from gatefuse_kernels.mlp import Mlp
from gatefuse_kernels.plan import Algorithm, choose
from gatefuse_kernels.weights.packed import MlpWeights

if TYPE_CHECKING:
    from torch.cuda import _POOL_HANDLE as PoolHandle

Forward = Callable[[torch.Tensor], torch.Tensor]
"""x `[M, H]` -> its answer `[M, H]`, in memory of the form's own."""


@dataclass(frozen=True, eq=False)
class Graph:
    """One captured call.

    Attributes:
        replay: queues it on the current stream.
        answer: `[M, H]`, where a replay leaves its answer.
        launches: kernels of a replay.
    """

    replay: Callable[[], object]
    answer: torch.Tensor
    launches: int


@dataclass(frozen=True, eq=False)
class Form:
    """The same computation on each copy of the weights, one graph each, over one x.

    Attributes:
        graphs: in the order of the copies.
        kernels: launches of a call by name; empty where nobody named them.
        algorithm: of our own plan; None for somebody else's computation.
    """

    graphs: tuple[Graph, ...]
    kernels: dict[str, int]
    algorithm: Algorithm | None = None

    @property
    def launches(self) -> int:
        """Kernels of one call."""
        return self.graphs[0].launches

    @property
    def replays(self) -> list[Callable[[], object]]:
        """One turn: a call for each copy of the weights."""
        return [graph.replay for graph in self.graphs]


def capture_ours(copies: Sequence[Copy], x: torch.Tensor, *, deterministic: bool = False) -> Form:
    """Our fused MLP as the service runs it: its launches are counted and held to the graph's nodes.

    Raises:
        RuntimeError: they differ.
    """
    rows, ledger, pool = x.shape[0], Ledger(), torch.cuda.graph_pool_handle()
    out = torch.empty_like(x)
    graphs: list[Graph] = []
    for copy in copies:
        mlp = ours(copy.weights, rows, ledger, deterministic=deterministic)
        graphed = GraphedMlp(_AtOneCount(mlp), x, out, (rows,), ledger, pool)
        graphed.capture()
        recipe = graphed.recipe(rows)
        graphs.append(Graph(partial(graphed.replay, rows), out, recipe.launches))
    weights = copies[0].weights
    plan = choose(
        weights.shape,
        rows,
        weights.dtype,
        profile_of(weights.device),
        deterministic=deterministic,
    )
    return Form(tuple(graphs), recipe.kernels, plan.algorithm)


def ours(weights: MlpWeights, rows: int, ledger: Ledger, *, deterministic: bool = False) -> Mlp:
    """The MLP that is measured."""
    return build_mlp("fused", weights, ledger=ledger, max_rows=rows, deterministic=deterministic)


class _AtOneCount:
    """An MLP of one row count: the call before the capture compiles all it needs, and no more."""

    def __init__(self, mlp: Mlp) -> None:
        self._mlp = mlp

    def warm_up(self) -> None:
        """Nothing: it would compile for every count up to the largest."""

    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> None:
        self._mlp(x, out)


def capture_form(forwards: Sequence[Forward], x: torch.Tensor) -> Form:
    """Somebody else's computation, one forward for each copy of the weights."""
    pool = torch.cuda.graph_pool_handle()
    return Form(tuple(_capture(forward, x, pool) for forward in forwards), {})


@dataclass(frozen=True, eq=False)
class _Replay:
    """A captured call, with the call itself: it keeps the memory alive that the graph only points to."""

    graph: torch.cuda.CUDAGraph
    call: Callable[..., object]

    def __call__(self) -> None:
        self.graph.replay()


def capture_call(call: Callable[[], object]) -> Callable[[], object]:
    """The replay of one call that is no MLP."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=capture_stream(torch.cuda.current_device())):
        call()
    return _Replay(graph, call)


def _capture(forward: Forward, x: torch.Tensor, pool: "PoolHandle") -> Graph:
    # Outside first: compiling, tuning and opening libraries cannot be captured.
    forward(x)
    torch.cuda.synchronize()
    stream = capture_stream(torch.cuda.current_device())
    with torch.cuda.stream(stream):
        # Once more here, because libraries keep a workspace for each stream.
        forward(x)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            answer = forward(x)
        finally:
            graph.capture_end()
        launches = len(kernel_names(graph.raw_cuda_graph()))
        graph.instantiate()
    return Graph(_Replay(graph, forward), answer, launches)
