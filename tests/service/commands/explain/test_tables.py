"""What the cells of the tables say."""

from __future__ import annotations

from dataclasses import replace

from gatefuse.commands.explain.tables import headline, point_title, tables_of
from gatefuse_kernels.bench.results import Spread
from gatefuse_kernels.explain.mlp import explain_mlp
from gatefuse_kernels.explain.occupancy import Compiled, occupancy
from gatefuse_kernels.explain.results import Point
from gatefuse_kernels.explain.roofs import find_device, roofs_of
from gatefuse_kernels.shapes import DType, MlpShape

EXPLANATION = explain_mlp(
    MlpShape(4096, 14336), [1, 16], DType.BF16, roofs_of(find_device("h200"), DType.BF16)
)


def test_headline_and_titles() -> None:
    assert headline(EXPLANATION) == (
        "MLP 4096x14336, bf16, on NVIDIA H200: 4.8 TB/s, 989 TFLOP/s, ridge at 206 FLOPs a byte"
    )
    assert [point_title(EXPLANATION, point) for point in EXPLANATION.points] == ["1 row", "16 rows"]


def measured(point: Point) -> Point:
    fused = point.form("fused")
    compiled = Compiled("swiglu_down", 72, 16, 2048, 4, occupancy((9, 0), 72, 2048, 4))
    new = replace(fused, measured=Spread(80.9, 80.0, 82.0, 50), compiled=(compiled,))
    return replace(point, forms=tuple(new if form is fused else form for form in point.forms))


def test_measured_times_stand_beside_predicted_ones() -> None:
    backends, _, resources = tables_of(measured(EXPLANATION.points[0]))
    assert backends.header[-3:] == ("predicted", "bound by", "measured")
    cells = {row[0]: row[-1] for row in backends.rows}
    assert (cells["fused"], cells["ideal"]) == ("80.9 µs", "-")
    assert resources.rows == (
        ("fused", "swiglu_down", "72", "16 B", "2.05 KB", "4", "7", "registers", "44%"),
    )


def test_nothing_measured_is_no_column() -> None:
    backends, kernels = tables_of(EXPLANATION.points[0])
    assert "measured" not in backends.header
    named = [row[0] for row in kernels.rows if row[0]]
    assert named == ["eager", "compiled", "fused", "textbook", "ideal"]
    assert all(len(row) == len(kernels.header) for row in kernels.rows)
