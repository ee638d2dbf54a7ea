"""The kernels' arithmetic in Triton's interpreter; `test_interpreter.py` runs this file.

The interpreter must be on before Triton is first imported, so these tests have a process of their
own. It cannot do bf16 (it multiplies bit patterns), so fp32 and fp16 stand in.
"""

from __future__ import annotations

import math
import os
from dataclasses import replace
from typing import Any

import pytest
import torch
import triton.language as tl

from gatefuse_kernels import dtypes, plan, reference
from gatefuse_kernels.launch.jit import kernel
from gatefuse_kernels.plan import Overlap, Tile
from gatefuse_kernels.plan.summation import order_of
from gatefuse_kernels.shapes import Activation, DType, MlpShape
from gatefuse_kernels.swiglu.launcher import Launcher
from gatefuse_kernels.swiglu.split_sum import SplitWorkspace
from gatefuse_kernels.swiglu.tiles import tile_of_program
from gatefuse_kernels.weights.packed import MlpWeights

assert os.environ.get("TRITON_INTERPRET") == "1", "run through test_interpreter.py"

# The interpreter computes with numpy, which warns where a GPU quietly makes an infinity or NaN.
pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered")

H200 = plan.KNOWN_DEVICES["nvidia-h200"]
ODD_SHAPES = (MlpShape(37, 101), MlpShape(130, 77), MlpShape(1, 1))
PLAIN = Tile(16, 32, 16, 4, 2, False, group=2)
SWAPPED = Tile(16, 32, 16, 4, 2, True, group=2)
SMALL_TILES = {
    "plain": (PLAIN, PLAIN),
    "swapped": (SWAPPED, SWAPPED),
    "split": (PLAIN, replace(PLAIN, splits=3)),
    "split swapped": (SWAPPED, replace(SWAPPED, splits=2)),
    "one token": (Tile(1, 32, 16, 4, 1, False),) * 2,
    "two tokens": (Tile(2, 32, 16, 4, 1, False),) * 2,
}


def make_weights(
    shape: MlpShape, dtype: DType, activation: Activation = Activation.SILU
) -> MlpWeights:
    generator = torch.Generator().manual_seed(7)
    hidden, intermediate = shape.hidden, shape.intermediate
    kind = dtypes.to_torch(dtype)
    gate_up = torch.randn(2 * intermediate, hidden, generator=generator) / math.sqrt(hidden)
    down = torch.randn(hidden, intermediate, generator=generator) / math.sqrt(intermediate)
    return MlpWeights(gate_up.to(kind), down.to(kind), activation)


def make_rows(rows: int, weights: MlpWeights) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, weights.shape.hidden, generator=generator)
    return x.to(weights.down.dtype)


def run(
    x: torch.Tensor, weights: MlpWeights, tiles: tuple[Tile, Tile] | None = None
) -> torch.Tensor:
    """By the plan, or both launches with these tiles, into NaN with a NaN row behind each matrix."""
    launch = Launcher(weights, H200)
    rows, intermediate = x.shape[0], weights.shape.intermediate
    out = torch.full((rows + 1, x.shape[1]), math.nan, dtype=x.dtype)
    if tiles is None:
        chosen = plan.choose(weights.shape, rows, weights.dtype, H200)
        # A dependent launch is inline assembly, which the interpreter has not.
        launch.run(replace(chosen, overlap=Overlap.NONE), x, out[:rows])
    else:
        h = torch.full((rows + 1, intermediate), math.nan, dtype=x.dtype)
        launch.gate_up(x, h[:rows], tiles[0])
        launch.down(h[:rows], out[:rows], tiles[1])
        assert h[rows].isnan().all(), "gate_up wrote past its rows"
    assert out[rows].isnan().all(), "down wrote past its rows"
    return out[:rows]


@pytest.mark.parametrize("rows", [1, 3, 17, 65])
@pytest.mark.parametrize("shape", ODD_SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [DType.FP32, DType.FP16])
def test_odd_sizes_with_the_shipped_tiles(dtype: DType, shape: MlpShape, rows: int) -> None:
    weights = make_weights(shape, dtype)
    x = make_rows(rows, weights)
    accuracy = reference.measure_accuracy(run(x, weights), x, weights)
    if shape == MlpShape(1, 1):
        # One product per output: no sum to be accurate about, only h's and the output's rounding.
        assert accuracy.error <= 4 * accuracy.limit
    else:
        assert accuracy.is_fused_grade, accuracy


@pytest.mark.parametrize("tiles", SMALL_TILES)
@pytest.mark.parametrize("rows", [1, 33])
@pytest.mark.parametrize("shape", [MlpShape(48, 64), MlpShape(50, 70)], ids=str)
def test_every_path_of_a_tile(shape: MlpShape, rows: int, tiles: str) -> None:
    """Exact and ragged inner loops, several groups of row tiles, operand orders, parts of a sum."""
    weights = make_weights(shape, DType.FP32)
    x = make_rows(rows, weights)
    answer = run(x, weights, SMALL_TILES[tiles])
    assert reference.measure_accuracy(answer, x, weights).error <= 1e-6


@pytest.mark.parametrize("swapped", [False, True], ids=["plain", "swapped"])
@pytest.mark.parametrize("rows", [1, 33])
@pytest.mark.parametrize("shape", [MlpShape(48, 64), MlpShape(52, 76)], ids=str)
def test_tiles_through_descriptors(shape: MlpShape, rows: int, swapped: bool) -> None:
    """Rows start on 16 bytes; whole and ragged tiles, and some shared out among programs."""
    weights = make_weights(shape, DType.FP32)
    x = make_rows(rows, weights)
    tile = Tile(16, 32, 16, 4, 2, swapped, group=2, descriptors=True)
    for tiles in ((tile, tile), (replace(tile, share_tail=swapped), replace(tile, splits=2))):
        answer = run(x, weights, tiles)
        assert reference.measure_accuracy(answer, x, weights).error <= 1e-6


@pytest.mark.parametrize("descriptors", [False, True], ids=["pointers", "descriptors"])
@pytest.mark.parametrize("inner", [16, 32])
@pytest.mark.parametrize("width", [64, 76, 100])
@pytest.mark.parametrize("splits", [2, 3, 4, 7])
def test_sums_are_cut_where_the_plan_says(
    monkeypatch: pytest.MonkeyPatch, splits: int, width: int, inner: int, descriptors: bool
) -> None:
    """Of ones: each part of the first sum is as large as the part is long."""
    kept = []

    def keeping(workspace: SplitWorkspace, *arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
        kept.append(taken := take(workspace, *arguments))
        return taken

    take = SplitWorkspace.for_tile
    monkeypatch.setattr(SplitWorkspace, "for_tile", keeping)
    weights = MlpWeights(torch.ones(2 * width, 32), torch.ones(32, width), Activation.SILU)
    tile = Tile(16, 32, inner, 4, 2, False, splits=splits, descriptors=descriptors)
    out = torch.empty(1, 32)
    Launcher(weights, H200).down(torch.ones(1, width), out, tile)
    [(parts, _)] = kept
    lengths = parts.view(splits, -1)[:, 0]
    assert out[0, 0] == width
    assert tuple(lengths.cumsum(0).int().tolist()) == order_of(tile, width)


@pytest.mark.parametrize("multiprocessors", [1, 2, 3, 4])
def test_tiles_that_programs_share(monkeypatch: pytest.MonkeyPatch, multiprocessors: int) -> None:
    """Three row tiles by five columns, four steps each, on devices that run 2 to 8 programs at once.

    Two are too few for three row tiles. The others have stretches of 4, 3 and 1.5 columns, beside
    one, none and two columns that have programs of their own. The counters must be left at zero: it runs
    twice.
    """
    weights = make_weights(MlpShape(52, 156), DType.FP32)
    x = make_rows(33, weights)
    tile = Tile(16, 32, 16, 4, 2, True, group=4, descriptors=True)
    gate_up = Launcher(weights, replace(H200, multiprocessors=multiprocessors))
    h = torch.full((2, 34, 156), math.nan)
    for answer in h:
        gate_up.gate_up(x, answer[:33], replace(tile, share_tail=True))
    gate, up = (x.double() @ half.double().t() for half in (weights.gate, weights.up))
    expected = torch.nn.functional.silu(gate) * up
    assert h[:, 33].isnan().all(), "wrote past its rows"
    assert torch.equal(h[0, :33], h[1, :33])
    assert reference.relative_error(h[0, :33], expected) <= 1e-6


@pytest.mark.parametrize("activation", Activation)
@pytest.mark.parametrize("dtype", [DType.FP32, DType.FP16])
def test_activations(dtype: DType, activation: Activation) -> None:
    weights = make_weights(MlpShape(40, 72), dtype, activation)
    x = make_rows(19, weights) * 3
    accuracy = reference.measure_accuracy(run(x, weights), x, weights)
    assert accuracy.is_fused_grade, accuracy


@pytest.mark.parametrize("activation", Activation)
def test_extreme_gates_stay_finite(activation: Activation) -> None:
    """A gate of -1e4 must give 0, not NaN from an overflowing exp; +1e4 must give itself."""
    gates = [-1e30, -1e4, -100.0, -20.0, -1.0, 0.0, 1.0, 20.0, 100.0, 1e4, 1e30]
    # The gate reads column 0 and up reads column 1, which is always one: the answer is act(gate).
    weights = MlpWeights(torch.eye(2), torch.tensor([[1.0], [0.0]]), activation)
    x = torch.tensor([[gate, 1.0] for gate in gates])
    answer = run(x, weights)[:, 0]
    expected = reference.activate(x[:, 0].double(), activation)
    torch.testing.assert_close(answer.double(), expected, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("rows", [3, 33])
def test_a_bad_row_stays_in_its_row(rows: int, value: float) -> None:
    weights = make_weights(MlpShape(37, 101), DType.FP32)
    x = make_rows(rows, weights)
    clean = run(x, weights)
    x[1, 5] = value
    dirty = run(x, weights)
    assert dirty[1].isnan().any()
    others = [row for row in range(rows) if row != 1]
    assert torch.equal(dirty[others], clean[others])


def test_fp16_overflow_is_infinite_as_in_torch() -> None:
    """H above 65504 becomes infinite and spreads through down, as with torch's own ops."""
    weights = make_weights(MlpShape(24, 40), DType.FP16)
    x = make_rows(4, weights)
    x[2] *= 20000
    answer, eager = run(x, weights), reference.eager_mlp(x, weights)
    assert not eager[2].isfinite().any()
    assert not answer[2].isfinite().any()
    assert answer[[0, 1, 3]].isfinite().all()


@kernel
def store_tile_origins(
    out_ptr: tl.tensor, rows: tl.tensor, WIDTH: tl.constexpr, BLOCK_ROWS: tl.constexpr
) -> None:
    """Where each program's tile starts in a `[rows, WIDTH]` matrix, as the kernels compute it."""
    row_tile, column_tile = tile_of_program(tl.program_id(0), rows, WIDTH, BLOCK_ROWS, WIDTH, 8)
    origin = row_tile * BLOCK_ROWS * WIDTH + column_tile * WIDTH
    tl.store(out_ptr + tl.program_id(0), origin)


def test_tile_origins_do_not_wrap_at_32_bits() -> None:
    """The interpreter reproduces int32 wrap-around; the last origin lies above 2^31 elements."""
    width, block, rows = 1 << 18, 1024, 11 * 1024
    origins = torch.zeros(rows // block, dtype=torch.int64)
    store_tile_origins[(rows // block,)](origins, rows, WIDTH=width, BLOCK_ROWS=block)
    assert sorted(origins.tolist()) == [tile * block * width for tile in range(rows // block)]
    assert origins.max() > 2**31
