"""The deterministic mode where there is no GPU: a row's bits depend on the row alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from gatefuse_kernels import dtypes, reference
from gatefuse_kernels.backends import Mlp, build_mlp
from gatefuse_kernels.ledger import Ledger
from gatefuse_kernels.shapes import Activation, DType
from gatefuse_kernels.swiglu.cpu_blocks import FixedBlocks
from gatefuse_kernels.weights.packed import MlpWeights
from gatefuse_kernels.weights.random_weights import random_source

CPU = torch.device("cpu")
# The second is above the size from which torch shares the work among threads.
SHAPES = ((131, 77), (1000, 2072))
POOL_ROWS = 40


@pytest.fixture(params=[1, 2, 3], ids=lambda count: f"{count}-threads")
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def make_weights(
    shape: tuple[int, int], dtype: DType, activation: Activation = Activation.SILU
) -> MlpWeights:
    weights = random_source(*shape, 1, 3).load(0, dtype, CPU)
    return MlpWeights(weights.gate_up, weights.down, activation)


def make_pool(weights: MlpWeights) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    pool = torch.randn(POOL_ROWS, weights.shape.hidden, generator=generator)
    return pool.to(weights.down.dtype)


def bits(answer: torch.Tensor) -> torch.Tensor:
    return answer.view(torch.int32 if answer.dtype == torch.float32 else torch.int16)


def deterministic(weights: MlpWeights, ledger: Ledger | None = None) -> Mlp:
    return build_mlp("fused", weights, ledger=ledger or Ledger(), max_rows=100, deterministic=True)


def call(mlp: Mlp, x: torch.Tensor) -> torch.Tensor:
    out = torch.full_like(x, torch.nan)
    mlp(x, out)
    return out


@pytest.mark.parametrize("activation", Activation)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_have_the_bits_they_have_alone(
    shape: tuple[int, int], activation: Activation, threads: int
) -> None:
    """In random batches of any size and order, with any company, from one model or from another."""
    weights = make_weights(shape, DType.FP32, activation)
    pool, mlp = make_pool(weights), deterministic(weights)
    alone = torch.cat([call(deterministic(weights), row) for row in pool.split(1)])
    generator = torch.Generator().manual_seed(threads)
    for _ in range(20):
        rows = int(torch.randint(1, 60, (), generator=generator))
        chosen = torch.randint(POOL_ROWS, (rows,), generator=generator)
        assert torch.equal(bits(call(mlp, pool[chosen])), bits(alone[chosen]))


@pytest.mark.parametrize("dtype", DType)
def test_the_answers_are_as_good_as_the_default(dtype: DType) -> None:
    weights = make_weights((131, 77), dtype)
    pool = make_pool(weights)
    answer = call(deterministic(weights), pool)
    assert answer.dtype == dtypes.to_torch(dtype)
    assert reference.measure_accuracy(answer, pool, weights).is_fused_grade


def test_a_bad_row_stays_in_its_row() -> None:
    weights = make_weights((131, 77), DType.FP32)
    pool, mlp = make_pool(weights), deterministic(weights)
    clean = call(mlp, pool)
    pool[7, 5] = torch.nan
    dirty = call(mlp, pool)
    assert dirty[7].isnan().all()
    others = [row for row in range(POOL_ROWS) if row != 7]
    assert torch.equal(dirty[others], clean[others])


def test_blocks_are_counted_and_told() -> None:
    weights = make_weights((131, 77), DType.FP32)
    ledger = Ledger()
    mlp = deterministic(weights, ledger)
    mlp.warm_up()
    assert ledger.drain() == []
    assert "deterministic: always in blocks of 16 rows" in mlp.description
    assert [mlp.padded_rows(rows) for rows in (0, 1, 16, 17)] == [0, 16, 16, 32]
    call(mlp, make_pool(weights))
    assert {entry.kernel: entry.launches for entry in ledger.drain()} == {
        "swiglu_gate_up": 3,
        "swiglu_down": 3,
    }
    assert call(mlp, make_pool(weights)[:0]).shape == (0, 131)


def test_a_library_that_sees_positions_gets_single_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = make_weights((131, 77), DType.FP32)
    plain = torch.mm

    def by_position(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        plain(a, b, out=out)
        out[:, 3:] += 1e-3
        return out

    monkeypatch.setattr(torch, "mm", by_position)
    blocks = FixedBlocks(weights.gate_up, weights.down, weights.activation)
    assert blocks.choose_block_rows() == 1
    pool, mlp = make_pool(weights), deterministic(weights)
    assert "blocks of 1 row" in mlp.description
    answer = call(mlp, pool)
    assert torch.equal(answer[5:6], call(mlp, pool[5:6]))


@pytest.mark.parametrize("backend", ["eager", "compiled", "textbook"])
def test_only_fused_can_promise_it(backend: str) -> None:
    weights = make_weights((131, 77), DType.FP32)
    with pytest.raises(ValueError, match=f"{backend} cannot be deterministic: use backend fused"):
        build_mlp(backend, weights, ledger=Ledger(), max_rows=4, deterministic=True)
