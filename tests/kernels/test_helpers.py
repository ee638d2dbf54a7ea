"""The kernels that a library adds to its products, told by their names."""

from __future__ import annotations

import pytest

from gatefuse_kernels.plan import Algorithm, Plan, Tile, plan_traffic
from gatefuse_kernels.shapes import MlpShape
from gatefuse_kernels.swiglu.helpers import with_helpers

SHAPE = MlpShape(64, 96)
TILE = Tile(16, 64, 64, 4, 3, True)
LIBRARY = plan_traffic(Plan(Algorithm.LIBRARY, None, None, "test"), SHAPE, 4, 2)
MIXED = plan_traffic(Plan(Algorithm.FUSED_GATE_UP, TILE, None, "test"), SHAPE, 4, 2)
TWO = plan_traffic(Plan(Algorithm.TWO_LAUNCH, TILE, TILE, "test"), SHAPE, 4, 2)


def test_what_is_planned() -> None:
    assert [launch.kernel for launch in LIBRARY] == [
        "library_gate_up",
        "swiglu_gate",
        "library_down",
    ]
    assert [launch.kernel for launch in MIXED] == ["swiglu_gate_up", "library_down"]
    assert [launch.kernel for launch in TWO] == ["swiglu_gate_up", "swiglu_down"]
    # Every form reads the weights once; what they differ in is gate and up through memory.
    weights = 3 * 64 * 96 * 2
    assert all(sum(each.read_bytes for each in form) >= weights for form in (LIBRARY, MIXED, TWO))
    assert sum(each.bytes_moved for each in LIBRARY) - sum(each.bytes_moved for each in TWO) == (
        2 * 2 * 4 * 96 * 2
    )


def test_a_kernel_each() -> None:
    assert with_helpers(LIBRARY, ("nvjet", "swiglu_gate", "cutlass")) == LIBRARY
    assert with_helpers(MIXED, ("swiglu_gate_up", "nvjet")) == MIXED


def test_helpers_belong_to_the_product_before_them() -> None:
    names = ("nvjet", "splitK", "swiglu_gate", "nvjet", "splitK", "splitK")
    launches = with_helpers(LIBRARY, names)
    assert [launch.kernel for launch in launches] == [
        "library_gate_up",
        "library_gate_up_helper",
        "swiglu_gate",
        "library_down",
        "library_down_helper",
        "library_down_helper",
    ]
    assert [launch.bytes_moved for launch in launches if "helper" in launch.kernel] == [0, 0, 0]
    assert sum(launch.flops for launch in launches) == sum(launch.flops for launch in LIBRARY)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (("nvjet", "swiglu_gate"), "library_down has no kernel among nvjet, swiglu_gate"),
        (("swiglu_gate", "nvjet"), "swiglu_gate is none of the planned launches"),
        ((), "library_gate_up has no kernel"),
        (("nvjet", "swiglu_gate", "nvjet", "swiglu_gate"), "swiglu_gate is none of the planned"),
    ],
    ids=str,
)
def test_other_kernels_than_planned(names: tuple[str, ...], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        with_helpers(LIBRARY, names)
