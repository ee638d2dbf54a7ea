"""What the compiler makes of generated kernels, for each architecture, with no GPU at hand."""

from __future__ import annotations

import pytest
from tests.kernels.aot.running import Facts, facts_of, offenders

# The first run compiles for a minute; later ones find what did not change in the cache.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

BRIEF = ("linear", "silu", "gelu", "gelu_tanh", "twelve", "vectors")
"""Chains as they are served; the others are there to be hard."""


@pytest.fixture(scope="module")
def kernels() -> list[Facts]:
    return facts_of("tests.kernels.elementwise.aot", timeout_s=560)


def test_every_chain_is_one_kernel(kernels: list[Facts]) -> None:
    names = [each["job"] for each in kernels]
    assert len(set(names)) == len(names)
    assert {each["kernel"] for each in kernels} == {"fused_elementwise"}
    met = {(each["chain"], each["dtype"], each["capability"]) for each in kernels}
    for chain in BRIEF:
        for dtype in ("bf16", "fp16", "fp32"):
            assert met >= {(chain, dtype, at) for at in (80, 90, 100)}


def test_nothing_spills(kernels: list[Facts]) -> None:
    assert not offenders(kernels, lambda each: each["stack_bytes"] > 0)


def test_aligned_accesses_are_128_bits_wide(kernels: list[Facts]) -> None:
    """Whole blocks and the vectors of the last one; what is less than a vector is an access of its own."""

    def is_narrow(each: Facts) -> bool:
        scalar = "ld.global.b32" if each["dtype"] == "fp32" else "ld.global.b16"
        allowed = set() if each["chain"] == "vectors" else {scalar}
        return not (
            each["wide_loads"] and each["wide_stores"] and set(each["narrow_loads"]) <= allowed
        )

    aligned = [each for each in kernels if each["is_aligned"] and each["chain"] != "fifteen"]
    assert not offenders(aligned, is_narrow)


def test_an_odd_width_costs_nothing_but_its_tail(kernels: list[Facts]) -> None:
    odd = [each for each in kernels if each["chain"] == "gelu" and "C=4099" in each["job"]]
    assert odd
    assert not offenders(odd, lambda each: not (each["wide_loads"] and each["wide_stores"]))


def test_views_that_start_elsewhere_are_read_narrowly(kernels: list[Facts]) -> None:
    """A wide access to such an address would be a fault."""
    shifted = [each for each in kernels if not each["is_aligned"]]
    assert shifted
    assert not offenders(shifted, lambda each: bool(each["wide_loads"] or each["wide_stores"]))


def test_nothing_is_computed_in_float64(kernels: list[Facts]) -> None:
    """A constant that arrives as fp64 would promote the whole chain."""
    assert not offenders(kernels, lambda each: each["float64"] > 0)


def test_served_chains_leave_room_for_enough_threads(kernels: list[Facts]) -> None:
    """What hides memory's latency is threads: 64 registers leave half of a multiprocessor's 2048."""
    served = [each for each in kernels if each["chain"] in BRIEF and each["is_aligned"]]
    assert not offenders(served, lambda each: each["registers"] > 64)
    short = [each for each in served if each["dtype"] != "fp32" and each["chain"] != "vectors"]
    assert not offenders(short, lambda each: each["registers"] > 40)


def test_no_value_passes_through_shared_memory(kernels: list[Facts]) -> None:
    """Each thread loads the columns it needs of a vector."""
    assert not offenders(
        [each for each in kernels if each["is_aligned"] and "C=4096" in each["job"]],
        lambda each: each["shared_bytes"] > 0,
    )
