"""CUDA graphs: replays equal direct launches bit for bit, and count as the profiler does."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from tests.kernels.cases import call, make_rows, make_weights, noise
from tests.kernels.gpu.forms import CUDA, FORMS, build
from tests.kernels.gpu.right import assert_right
from tests.kernels.gpu.watching import profiled, same_bits

from gatefuse_kernels.backends import Mlp, build_mlp
from gatefuse_kernels.launch.graphs import GraphedMlp
from gatefuse_kernels.ledger import Ledger
from gatefuse_kernels.shapes import row_buckets
from gatefuse_kernels.weights.packed import MlpWeights

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning"),
]


def make_graphs(
    backend: str, weights: MlpWeights, max_rows: int, ledger: Ledger
) -> tuple[GraphedMlp, Mlp, torch.Tensor, torch.Tensor]:
    mlp = build_mlp(backend, weights, ledger=ledger, max_rows=max_rows)
    like = weights.down
    x_buffer = torch.zeros(max_rows, like.shape[0], dtype=like.dtype, device=like.device)
    out_buffer = torch.full_like(x_buffer, math.nan)
    pool = torch.cuda.graph_pool_handle()
    graphs = GraphedMlp(mlp, x_buffer, out_buffer, row_buckets(max_rows), ledger, pool)
    graphs.capture()
    return graphs, mlp, x_buffer, out_buffer


@pytest.mark.parametrize("backend", ["fused", "eager", "compiled", "textbook"])
def test_replays_equal_direct_launches_and_the_profiler(backend: str) -> None:
    weights = make_weights(4096, 14336, device=CUDA)
    ledger = Ledger()
    graphs, mlp, x_buffer, out_buffer = make_graphs(backend, weights, 64, ledger)
    assert ledger.drain() == [], "warming up and capturing are not executions"
    for rows in (1, 5, 16, 64):
        bucket = graphs.bucket_for(rows)
        x = make_rows(rows, weights)
        x_buffer[:rows].copy_(x)
        x_buffer[rows:bucket].zero_()
        direct = call(mlp, x_buffer[:bucket].clone())
        ledger.drain()
        out_buffer.fill_(math.nan)
        names = profiled(partial(graphs.replay, bucket))
        entries = ledger.drain()
        assert {entry.mode for entry in entries} == {"graph"}
        assert sum(entry.launches for entry in entries) == len(names), names
        assert graphs.recipe(bucket).launches == len(names)
        assert same_bits(out_buffer[:bucket], direct)
        assert out_buffer[bucket:].isnan().all()


def test_graphs_of_two_layers_share_buffers_and_pool() -> None:
    ledger = Ledger()
    pool = torch.cuda.graph_pool_handle()
    x_buffer = torch.zeros(8, 512, dtype=torch.bfloat16, device=CUDA)
    out_buffer = torch.zeros_like(x_buffer)
    first = make_weights(512, 1024, device=CUDA)
    second = MlpWeights(first.gate_up.flip(0).contiguous(), first.down, first.activation)
    layers = []
    for weights in (first, second):
        mlp = build_mlp("fused", weights, ledger=ledger, max_rows=8)
        graphs = GraphedMlp(mlp, x_buffer, out_buffer, row_buckets(8), ledger, pool)
        graphs.capture()
        layers.append((graphs, weights))
    for graphs, weights in (*layers, *reversed(layers)):
        x = make_rows(3, weights)
        x_buffer[:3].copy_(x)
        x_buffer[3:].zero_()
        graphs.replay(graphs.bucket_for(3))
        torch.cuda.synchronize()
        assert_right("fused", out_buffer[:3], x, weights, graphs.bucket_for(3))


@pytest.mark.parametrize("form", FORMS)
def test_a_row_count_that_warm_up_did_not_run_can_be_captured(form: str) -> None:
    """triton#10596: choosing by timing synchronizes, which ends a capture. Here nothing is chosen then."""
    weights = make_weights(256, 688, device=CUDA)
    mlp = build(form, weights, 300)
    mlp.warm_up()
    for rows in (7, 29, 211):
        x = make_rows(rows, weights)
        out = torch.full_like(x, math.nan)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            mlp(x, out)
        assert out.isnan().all(), "a capture runs nothing"
        graph.replay()
        assert same_bits(out, call(mlp, x))


@pytest.mark.parametrize("form", FORMS)
def test_replays_back_to_back_read_nothing_stale(form: str) -> None:
    """triton#11905, cccl#5297: a dependent launch that begins early must wait before it reads h.

    One graph alternates between two inputs, and each h takes the other's place in memory.
    """
    weights = make_weights(2048, 6144, device=CUDA)
    mlp = build(form, weights, 64)
    mlp.warm_up()
    for rows in (1, 16, 64):
        inputs = [
            noise(rows, 2048, seed=seed, dtype=torch.bfloat16, device=CUDA) for seed in (0, 1)
        ]
        expected = [call(mlp, x) for x in inputs]
        torch.cuda.synchronize()
        outs = [torch.full_like(inputs[0], math.nan) for _ in range(10)]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            for index, out in enumerate(outs):
                mlp(inputs[index % 2], out)
        for _ in range(20):
            for out in outs:
                out.fill_(math.nan)
            graph.replay()
            torch.cuda.synchronize()
            for index, out in enumerate(outs):
                assert same_bits(out, expected[index % 2])


@pytest.mark.parametrize("form", FORMS)
def test_layers_in_a_row_wait_for_one_another(form: str) -> None:
    """cccl#5297: the next layer's launch reads what this layer's last launch writes."""
    weights = make_weights(512, 1408, device=CUDA)
    mlp = build(form, weights, 64)
    mlp.warm_up()
    for rows in (1, 64):
        x = make_rows(rows, weights)
        step = x
        for _ in range(8):
            step = call(mlp, step)
            torch.cuda.synchronize()
        for _ in range(50):
            through = x
            for _ in range(8):
                out = torch.empty_like(through)
                mlp(through, out)
                through = out
            assert same_bits(through, step)


@pytest.mark.parametrize("form", ["split", "descriptors"])
def test_graphs_of_split_sums_replay_in_any_order(form: str) -> None:
    """Counters made within the first capture are zeroed by its replays alone: the second must not rely on them."""
    weights = make_weights(256, 688, device=CUDA)
    mlp = build(form, weights, 64)
    mlp.warm_up()
    inputs = [noise(rows, 256, seed=rows, dtype=torch.bfloat16, device=CUDA) for rows in (40, 64)]
    expected = [call(mlp, x) for x in inputs]
    outs = [torch.full_like(x, math.nan) for x in inputs]
    stream, pool = torch.cuda.Stream(), torch.cuda.graph_pool_handle()
    # What the two graphs find in their memory: numbers that are no counts.
    littering = torch.cuda.CUDAGraph()
    with torch.cuda.graph(littering, pool, stream, capture_error_mode="thread_local"):
        litter = torch.full((1 << 17,), 7, dtype=torch.int32, device=CUDA)
    littering.replay()
    torch.cuda.synchronize()
    del litter
    graphs = []
    for x, out in zip(inputs, outs, strict=True):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool, stream, capture_error_mode="thread_local"):
            mlp(x, out)
        graphs.append(graph)
    for number in (1, 0, 1, 0, 0):
        outs[number].fill_(math.nan)
        graphs[number].replay()
        assert same_bits(outs[number], expected[number]), number
