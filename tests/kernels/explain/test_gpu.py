"""On a GPU: a measured time stands beside every predicted one."""

from __future__ import annotations

import pytest

from gatefuse_kernels.explain.mlp import explain_mlp
from gatefuse_kernels.explain.program import explain_program
from gatefuse_kernels.explain.results import Explanation
from gatefuse_kernels.explain.roofs import Roofs, roofs_of
from gatefuse_kernels.expression import parse_program
from gatefuse_kernels.shapes import MAX_ROWS, DType, MlpShape

pytestmark = [pytest.mark.gpu, pytest.mark.slow]


@pytest.fixture(scope="module")
def roofs() -> Roofs:
    from gatefuse_kernels.explain.measuring import gpu_profile

    profile = gpu_profile()
    assert profile is not None
    return roofs_of(profile, DType.BF16)


def measured_backends(explanation: Explanation) -> list[str]:
    for point in explanation.points:
        assert all(form.measured.median_us > 0 for form in point.forms if form.measured)
    return [form.backend for form in explanation.points[0].forms if form.measured]


def test_an_mlp(roofs: Roofs) -> None:
    from gatefuse_kernels.explain.measuring import measure_mlp

    shape = MlpShape(256, 688)
    found = measure_mlp(shape, explain_mlp(shape, [1, 17], DType.BF16, roofs))
    assert measured_backends(found) == ["eager", "compiled", "fused", "textbook"]


@pytest.mark.parametrize(
    ("text", "vectors", "shape"),
    [
        ("gelu(x) * s + residual", ("s",), (77, 1000)),
        ("gelu(x) * 2 + residual", (), (MAX_ROWS + 1, 1)),
    ],
    ids=["a vector", "more elements than rows may be"],
)
def test_a_program(
    text: str, vectors: tuple[str, ...], shape: tuple[int, int], roofs: Roofs
) -> None:
    from gatefuse_kernels.explain.measuring import measure_program

    program = parse_program(text, {}, vectors)
    found = measure_program(program, explain_program(program, *shape, DType.BF16, roofs))
    assert measured_backends(found) == ["eager", "compiled", "fused"]
