"""Graphs of many row counts: memory that they share, and padding that changes nothing."""

from __future__ import annotations

import gc
import math

import pytest
import torch
from tests.kernels.cases import call, make_rows, make_weights
from tests.kernels.gpu.forms import CUDA
from tests.kernels.gpu.watching import same_bits

from gatefuse_kernels.backends import build_mlp
from gatefuse_kernels.launch.graphs import GraphedMlp
from gatefuse_kernels.ledger import Ledger
from gatefuse_kernels.weights.packed import MlpWeights

pytestmark = pytest.mark.gpu

MAX_ROWS = 512
_NOISE_BYTES = 4 << 20
"""Two of the allocator's smallest segments."""


def capture(
    backend: str,
    weights: MlpWeights,
    buckets: tuple[int, ...] | None,
    *,
    deterministic: bool = False,
) -> tuple[GraphedMlp, torch.Tensor, torch.Tensor]:
    """Graphs for `buckets`, by default the MLP's own; with their buffers for x and the answer."""
    ledger = Ledger()
    mlp = build_mlp(backend, weights, ledger=ledger, max_rows=MAX_ROWS, deterministic=deterministic)
    x = torch.zeros(MAX_ROWS, weights.shape.hidden, dtype=weights.down.dtype, device=CUDA)
    out = torch.full_like(x, math.nan)
    pool = torch.cuda.graph_pool_handle()
    graphed = GraphedMlp(mlp, x, out, buckets or mlp.graph_buckets, ledger, pool)
    graphed.capture()
    return graphed, x, out


def reserved_bytes() -> int:
    torch.cuda.synchronize()
    gc.collect()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()


@pytest.mark.parametrize("backend", ["fused", "eager"])
def test_memory_does_not_grow_with_the_number_of_graphs(backend: str) -> None:
    """The h of 512 rows is 14 MiB; a pool that kept one for each graph would be 160 times that.

    Either way there is a graph of each class: a library's workspace belongs to its first.
    """
    weights = make_weights(4096, 14336, device=CUDA)
    build_mlp(backend, weights, ledger=Ledger(), max_rows=MAX_ROWS).warm_up()
    grown = []
    for buckets in ((16, 64, 128, 256, MAX_ROWS), (*range(3, MAX_ROWS, 3), MAX_ROWS)):
        before = reserved_bytes()
        held = capture(backend, weights, buckets)
        grown.append(reserved_bytes() - before)
        del held
    assert abs(grown[1] - grown[0]) <= _NOISE_BYTES, grown


@pytest.mark.parametrize("deterministic", [False, True], ids=["default", "deterministic"])
def test_padding_to_a_bucket_changes_no_bits(deterministic: bool) -> None:
    """In the default mode, too: a bucket is of the class of the rows it pads."""
    weights = make_weights(2048, 6144, device=CUDA)
    graphed, x, out = capture("fused", weights, None, deterministic=deterministic)
    mlp = build_mlp(
        "fused", weights, ledger=Ledger(), max_rows=MAX_ROWS, deterministic=deterministic
    )
    for rows in (1, 2, 3, 15, 17, 40, 65, 100, 129, 300, 511):
        own = make_rows(rows, weights)
        bucket = graphed.bucket_for(rows)
        x[:rows].copy_(own)
        x[rows:bucket].zero_()
        graphed.replay(bucket)
        assert same_bits(out[:rows], call(mlp, own)), (rows, bucket)


def test_a_row_has_the_same_bits_in_every_bucket() -> None:
    """The deterministic mode of a service: whatever batch a row comes in."""
    weights = make_weights(4096, 14336, device=CUDA)
    graphed, x, out = capture("fused", weights, None, deterministic=True)
    row = make_rows(1, weights)
    answers = []
    for rows in (1, 16, 33, 100, 300, 512):
        bucket = graphed.bucket_for(rows)
        x[:bucket].copy_(make_rows(bucket, weights))
        for place in {0, rows // 2, rows - 1}:
            x[place].copy_(row[0])
        graphed.replay(bucket)
        answers += [out[place].clone() for place in {0, rows // 2, rows - 1}]
    assert all(same_bits(answer, answers[0]) for answer in answers)


def test_a_replay_never_captures() -> None:
    weights = make_weights(256, 688, device=CUDA)
    graphed, _, _ = capture("fused", weights, (4, 8))
    with pytest.raises(KeyError):
        graphed.replay(5)
