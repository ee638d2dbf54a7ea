"""The tutorials' numbers, from the same formulas that the ledger counts with."""

from __future__ import annotations

import pytest

from gatefuse_kernels import traffic
from gatefuse_kernels.explain.mlp import explain_mlp
from gatefuse_kernels.explain.program import explain_program
from gatefuse_kernels.explain.results import Bound, Explanation
from gatefuse_kernels.explain.roofs import find_device, roofs_given, roofs_of
from gatefuse_kernels.expression import parse_program
from gatefuse_kernels.plan import Tile, choose, plans_for
from gatefuse_kernels.plan.cost import predicted_s
from gatefuse_kernels.shapes import DType, MlpShape

LLAMA_8B = MlpShape(4096, 14336)
ELEMENTS = 100_000_000
TUTORIAL_GPU = roofs_given(504e9, 29e12, "the tutorial's GPU")
H200 = roofs_of(find_device("h200"), DType.BF16)


def chain(text: str) -> Explanation:
    program = parse_program(text, {"scale": 0.5})
    return explain_program(program, ELEMENTS, 1, DType.FP32, TUTORIAL_GPU)


@pytest.mark.parametrize(
    ("text", "trips", "kernels"),
    [
        ("x * 2 + 3", (4, 2), 2),
        ("silu(g) * u", (5, 3), 2),
        ("gelu(x) * scale + residual", (7, 3), 3),
    ],
)
def test_trips_of_the_chains(text: str, trips: tuple[int, int], kernels: int) -> None:
    (point,) = chain(text).points
    eager, fused = point.form("eager"), point.form("fused")
    assert (eager.passes, fused.passes) == trips
    assert (eager.launches, fused.launches) == (kernels, 1)
    assert eager.bytes_moved * trips[1] == fused.bytes_moved * trips[0]
    assert eager.bound is fused.bound is Bound.MEMORY
    assert f"{trips[0]} trips become {trips[1]}" in point.advice[1]


def test_a_trip_of_a_hundred_million_floats() -> None:
    """400 MB, 0.8 ms at 504 GB/s: of one reading or one writing, which the tutorial calls a round trip.

    A temporary costs two, for it is written and then read.
    """
    (point,) = chain("x * 2 + 3").points
    (launch,) = [kernel.traffic for kernel in point.form("fused").kernels]
    assert [each.nbytes for each in (*launch.reads, *launch.writes)] == [400_000_000] * 2
    trip_s = launch.read_bytes / TUTORIAL_GPU.bandwidth_bytes_per_s
    assert round(trip_s * 1e3, 1) == 0.8
    assert "400 MB and takes 0.794 ms" in point.advice[0]
    assert point.form("fused").predicted_s == pytest.approx(2 * trip_s, rel=1e-2)


def test_intermediates_are_never_allocated() -> None:
    (point,) = chain("gelu(x) * scale + residual").points
    assert point.form("eager").peak_intermediate_bytes == 800_000_000
    assert point.form("fused").peak_intermediate_bytes == 0


def test_passes_and_launches_of_the_mlp() -> None:
    """14 passes in five launches; the promise of 5 in one; ours, 7 in two."""
    (point,) = explain_mlp(LLAMA_8B, [1], DType.BF16, H200).points
    counts = {form.backend: (form.passes, form.launches) for form in point.forms}
    assert counts["eager"] == (14, 5)
    assert counts["ideal"] == (5, 1)
    assert counts["fused"] == (7, 2)
    assert counts["compiled"] == (12, 4)


def test_what_the_single_kernel_costs() -> None:
    """43 times the FLOPs and 15.2 GB at BLOCK_N 64; its 5 passes are 98 with the tile that it is served with."""
    (point,) = explain_mlp(LLAMA_8B, [1], DType.BF16, H200).points
    tutorial = traffic.textbook_mlp(LLAMA_8B, 1, 2, Tile(16, 64, 64, 4, 3, False))
    ideal = point.form("ideal")
    assert tutorial.flops / ideal.flops == pytest.approx(43.0, abs=0.05)
    assert "43 × and 15.2 GB" in point.advice[1]
    assert point.form("textbook").passes == 98
    assert point.form("textbook").predicted_s > 20 * ideal.predicted_s


@pytest.mark.parametrize("rows", [1, 16, 200, 1024])
def test_the_predicted_time_is_the_plans_own(rows: int) -> None:
    """One model of time: what chooses the graphs' row counts is what is printed."""
    (point,) = explain_mlp(LLAMA_8B, [rows], DType.BF16, H200).points
    assert H200.profile is not None
    plan = choose(LLAMA_8B, rows, DType.BF16, H200.profile)
    expected = predicted_s(plan, LLAMA_8B, rows, DType.BF16, H200.profile)
    assert point.form("fused").predicted_s == pytest.approx(expected, rel=1e-12)


def test_an_unknown_device_has_no_plans() -> None:
    """Two launches by the formulas; where plans are known they differ in nothing but padding."""
    (unknown,) = explain_mlp(LLAMA_8B, [16], DType.BF16, TUTORIAL_GPU).points
    launches = [kernel.traffic for kernel in unknown.form("fused").kernels]
    assert launches == list(traffic.fused_mlp(LLAMA_8B, 16, 2))
    assert H200.profile is not None
    assert plans_for(LLAMA_8B, DType.BF16, H200.profile).at(16).tiles


@pytest.mark.parametrize(("dtype", "rows"), [(DType.BF16, 206), (DType.FP32, 28)])
def test_where_it_turns(dtype: DType, rows: int) -> None:
    """By the peaks: 989 TFLOP/s over 4.8 TB/s with two bytes a weight, 67 with four."""
    roofs = roofs_of(find_device("h200"), dtype)
    explanation = explain_mlp(LLAMA_8B, [rows // 4, rows * 4], dtype, roofs)
    assert f"at {rows} rows" in explanation.turning
    below, above = explanation.points
    assert (below.form("fused").bound, above.form("fused").bound) == (
        Bound.MEMORY,
        Bound.ARITHMETIC,
    )
    assert "bound by memory" in below.advice[0]
    assert "Bound by arithmetic" in above.advice[0]


def test_launches_are_what_a_small_mlp_costs() -> None:
    (point,) = explain_mlp(MlpShape(256, 688), [1], DType.BF16, H200).points
    assert point.form("fused").bound is Bound.LAUNCH
    assert "launches are what costs, and 5 become 2" in point.advice[0]
    assert "may pay" in point.advice[1]


def test_a_chain_of_one_has_nothing_to_fuse() -> None:
    (point,) = chain("x * 2").points
    assert "Nothing to fuse" in point.advice[1]


def test_few_elements_are_bound_by_launches() -> None:
    program = parse_program("exp(x) * 2 + 3", {})
    explanation = explain_program(program, 1, 1000, DType.FP32, TUTORIAL_GPU)
    assert explanation.points[0].form("fused").bound is Bound.LAUNCH
    assert "launches are what costs" in explanation.points[0].advice[1]


def test_arithmetic_takes_over_where_the_device_has_little() -> None:
    weak = roofs_given(504e9, 1e9, "a slow one")
    program = parse_program("gelu_tanh(x) * 2", {})
    (point,) = explain_program(program, ELEMENTS, 1, DType.FP32, weak).points
    assert point.form("fused").bound is Bound.ARITHMETIC
    assert "then arithmetic is the limit" in point.advice[1]


@pytest.mark.parametrize(
    ("shape", "rows", "share"), [(LLAMA_8B, 1, "100%"), (MlpShape(8, 8), 1 << 24, "0%")], ids=str
)
def test_what_is_left_is_weights_only_where_it_is(shape: MlpShape, rows: int, share: str) -> None:
    """With widths of eight the rows are all there is."""
    (point,) = explain_mlp(shape, [rows], DType.BF16, H200).points
    assert f"{share} of what is left are weights" in point.advice[0]
