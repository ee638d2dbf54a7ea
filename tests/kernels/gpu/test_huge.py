"""Matrices of more than 2^31 elements: an offset in 32 bits would wrap.

One at a time on a device, for each takes up to 15 GB; each in a few seconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from tests.kernels.cases import call, make_rows, make_weights, noise
from tests.kernels.gpu.forms import CUDA, build
from tests.kernels.gpu.right import assert_right

from gatefuse_kernels import gated, reference
from gatefuse_kernels.elementwise import build_elementwise
from gatefuse_kernels.expression import parse_program
from gatefuse_kernels.ledger import Ledger
from gatefuse_kernels.shapes import Activation, DType
from gatefuse_kernels.weights.packed import MlpWeights

pytestmark = [pytest.mark.gpu, pytest.mark.xdist_group("huge")]

LIMIT = 2**31
GIB = 1 << 30


@pytest.fixture(autouse=True)
def enough_memory() -> Iterator[None]:
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    if free < 18 * GIB:
        pytest.skip(f"needs 18 GiB of free GPU memory, there are {free / GIB:.0f}")
    yield
    torch.cuda.empty_cache()


def assert_right_at_both_ends(
    form: str, answer: torch.Tensor, x: torch.Tensor, weights: MlpWeights
) -> None:
    rows = x.shape[0]
    for part in (slice(0, 200), slice(rows // 2, rows // 2 + 200), slice(rows - 200, rows)):
        assert_right(form, answer[part], x[part], weights, rows)
    assert answer.isfinite().all()


@pytest.mark.parametrize("form", ["fused", "deterministic"])
def test_h_of_an_mlp(form: str) -> None:
    """DeepSpeed#8590, Liger-Kernel#1248: int32 row times stride, between the two launches."""
    intermediate = 14336
    rows = LIMIT // intermediate + 160
    weights = make_weights(128, intermediate, device=CUDA)
    x = make_rows(rows, weights)
    assert_right_at_both_ends(form, call(build(form, weights, rows), x), x, weights)


@pytest.mark.parametrize("form", ["fused", "textbook"])
def test_x_and_the_output_of_an_mlp(form: str) -> None:
    """NVlabs/Sana#468: rows from 74,899 on were wrong at width 28,672; generative-recommenders#556: only the store."""
    rows, hidden = 75_100, 28_672
    assert rows * hidden > LIMIT
    weights = make_weights(hidden, 16, device=CUDA)
    x = noise(rows, hidden, dtype=torch.bfloat16, device=CUDA)
    assert_right_at_both_ends(form, call(build(form, weights, rows), x), x, weights)


def test_the_weights_of_an_mlp() -> None:
    """The last rows of gate_up lie beyond 2^31 elements, and so do those of down."""
    hidden, intermediate = 32_768, 65_664
    assert hidden * intermediate > LIMIT
    like = torch.empty(0, dtype=torch.bfloat16, device=CUDA)
    generator = torch.Generator(CUDA).manual_seed(0)
    gate_up = like.new_empty(2 * intermediate, hidden)
    gate_up.normal_(0, 1 / math.sqrt(hidden), generator=generator)
    down = like.new_empty(hidden, intermediate)
    down.normal_(0, 1 / math.sqrt(intermediate), generator=generator)
    weights = MlpWeights(gate_up, down, Activation.SILU)
    for rows in (3, 130):
        x = make_rows(rows, weights)
        answer = call(build("fused", weights, rows), x)
        assert reference.relative_error(answer, _truth_in_parts(x, weights)) < 4.2e-3


def _truth_in_parts(x: torch.Tensor, weights: MlpWeights) -> torch.Tensor:
    """`mlp_reference` without a float64 copy of all weights at once."""
    truth = torch.zeros(x.shape[0], weights.shape.hidden, dtype=torch.float64, device=x.device)
    for start in range(0, weights.shape.intermediate, 4096):
        units = slice(start, start + 4096)
        gate = x.double() @ weights.gate[units].double().t()
        up = x.double() @ weights.up[units].double().t()
        h = reference.activate(gate, weights.activation) * up
        truth += h @ weights.down[:, units].double().t()
    return truth


def test_the_gate_of_whole_matrices() -> None:
    """DeepSpeed#8590: pid times block in int32 went negative, and a negative offset passes the mask."""
    width = 14_336
    rows = LIMIT // width + 160
    guarded = torch.full((rows + 2, width), math.nan, dtype=torch.bfloat16, device=CUDA)
    gate = noise(rows, width, seed=1, dtype=torch.bfloat16, device=CUDA)
    up = gate.flip(1)
    out = guarded[1:-1]
    gated(gate, up, out=out)
    assert guarded[0].isnan().all()
    assert guarded[-1].isnan().all()
    _assert_gated_in_parts(out, gate, up)


def test_the_gate_of_a_merged_matrix() -> None:
    """NVlabs/Sana#468 at its own width: 2I = 28,672, and rows from 74,899 on."""
    rows, width = 75_100, 14_336
    assert rows * 2 * width > LIMIT
    gate, up = noise(rows, 2 * width, dtype=torch.bfloat16, device=CUDA).chunk(2, dim=1)
    out = torch.full((rows, width), math.nan, dtype=torch.bfloat16, device=CUDA)
    gated(gate, up, out=out)
    _assert_gated_in_parts(out, gate, up)


def test_the_gate_in_place_in_a_merged_matrix() -> None:
    """generative-recommenders#556: only the store's offset wrapped. Here it has the wide stride, too."""
    rows, width = 75_100, 14_336
    merged = noise(rows, 2 * width, dtype=torch.bfloat16, device=CUDA)
    gate, up = merged.chunk(2, dim=1)
    first, last = gated(gate[:100].clone(), up[:100]), gated(gate[-100:].clone(), up[-100:])
    kept = up[-100:].clone()
    gated(gate, up, out=gate)
    assert torch.equal(gate[:100], first)
    assert torch.equal(gate[-100:], last)
    assert torch.equal(up[-100:], kept)


@pytest.mark.parametrize("text", ["silu(g) * u", "silu(g) * u * v"])
def test_an_elementwise_program(text: str) -> None:
    """DeepSpeed#8590 again: in generated kernels, in runs of elements and in tiles of rows and columns."""
    width = 14_336
    rows = LIMIT // width + 160
    program = parse_program(text, {}, ["v"])
    guarded = torch.full((rows + 2, width), math.nan, dtype=torch.bfloat16, device=CUDA)
    g = noise(rows, width, seed=1, dtype=torch.bfloat16, device=CUDA)
    u = g.flip(1)
    call_program = build_elementwise(
        "fused",
        program,
        vectors={"v": torch.ones(width, dtype=torch.bfloat16, device=CUDA)},
        ledger=Ledger(),
        dtype=DType.BF16,
        device=CUDA,
        max_rows=rows,
    )
    out = guarded[1:-1]
    call_program([g, u], [out])
    assert guarded[0].isnan().all()
    assert guarded[-1].isnan().all()
    _assert_gated_in_parts(out, g, u)


def _assert_gated_in_parts(out: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> None:
    for answer, g, u in zip(out.split(8192), gate.split(8192), up.split(8192), strict=True):
        exact = torch.nn.functional.silu(g.float()) * u.float()
        # One rounding to bf16 is half a unit in the last of its eight places.
        assert torch.allclose(answer.float(), exact, rtol=1.01 * 2**-8, atol=1e-30)
