"""What the compiler makes of every kernel and every shipped tile, for each architecture, with no GPU at hand."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.kernels.aot.running import Facts, facts_of, offenders

# The first run compiles for a minute or two; later ones find what did not change in the cache.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SHARED_LIMIT_BYTES = {
    80: 166_912,
    86: 101_376,
    89: 101_376,
    90: 232_448,
    100: 232_448,
    120: 101_376,
}
BY_TENSOR_CORES = {
    "swiglu_gate_up",
    "swiglu_down",
    "swiglu_gate_up_tma",
    "swiglu_gate_up_specialized",
    "swiglu_down_tma",
    "swiglu_textbook",
}


@pytest.fixture(scope="module")
def variants() -> list[Facts]:
    return facts_of("tests.kernels.aot", timeout_s=840)


def test_the_matrix_is_complete(variants: list[Facts]) -> None:
    """Every kernel meets every type on every architecture."""
    met = {(each["kernel"], each["dtype"], each["capability"]) for each in variants}
    kernels = ("swiglu_gate_up", "swiglu_down", "swiglu_textbook", "swiglu_gate")
    types = ("bf16", "fp16", "fp32")
    assert met >= {
        (name, dtype, at) for name in kernels for dtype in types for at in (80, 89, 90, 100)
    }
    assert {capability for _, _, capability in met} == set(SHARED_LIMIT_BYTES)


def test_no_kernel_is_left_out(variants: list[Facts]) -> None:
    """A new kernel in `swiglu/` must be launched by a job."""
    program = (
        "import importlib, pkgutil, gatefuse_kernels.swiglu as package\n"
        "from triton.runtime.jit import JITFunction\n"
        "for module in pkgutil.iter_modules(package.__path__, package.__name__ + '.'):\n"
        "    for name, each in vars(importlib.import_module(module.name)).items():\n"
        "        if isinstance(each, JITFunction) and each.do_not_specialize: print(name)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert {variant["kernel"] for variant in variants} >= set(result.stdout.split())


def test_nothing_spills(variants: list[Facts]) -> None:
    """Four words at most, where ptxas stops at half the registers for the sake of more warps.

    Seen with 64 to 128 registers, of 255: two to four words that live across the loop are stored
    before it and loaded after it, one of them in each step at most.
    """

    def spills(each: Facts) -> bool:
        allowed_bytes = 16 if each["registers"] <= 128 else 0
        return bool(each["stack_bytes"] > allowed_bytes)

    assert not offenders(variants, spills)


def test_shared_memory_fits(variants: list[Facts]) -> None:
    assert not offenders(
        variants, lambda each: each["shared_bytes"] > SHARED_LIMIT_BYTES[each["capability"]]
    )


def test_shared_memory_is_what_the_tile_says_at_most(variants: list[Facts]) -> None:
    """A plan is fitted to a device by it."""
    tiled = [each for each in variants if each["planned_shared_bytes"] is not None]
    assert tiled
    assert not offenders(tiled, lambda each: each["shared_bytes"] > each["planned_shared_bytes"])


def test_a_buffer_is_handed_back_by_all_who_read_it(variants: list[Facts]) -> None:
    """One thread arrives at the barrier; before it, all of its warps must have read the buffer."""
    specialized = [each for each in variants if each["kernel"] == "swiglu_gate_up_specialized"]
    assert specialized
    assert not offenders(specialized, lambda each: each["lone_arrivals"] > 0)


def test_products_use_tensor_cores_except_in_fp32(variants: list[Facts]) -> None:
    """In fp32 they would be tf32's, which is off by 1e-3 (triton#8654)."""
    products = [each for each in variants if each["kernel"] in BY_TENSOR_CORES]
    assert not offenders(
        products, lambda each: (each["tensor_cores"] > 0) == (each["dtype"] == "fp32")
    )


def test_a_dependent_launch_waits_before_it_reads(variants: list[Facts]) -> None:
    """triton#11905: in a pipelined loop the copies of its prologue would go ahead of the wait."""
    dependent = [each for each in variants if each["waits"]]
    kernels = {each["kernel"] for each in dependent}
    assert kernels == {"swiglu_down", "swiglu_down_tma", "swiglu_down_streamed"}
    others = [each for each in dependent if each["kernel"] != "swiglu_down_streamed"]
    assert not offenders(others, lambda each: each["reads_before_wait"] > 0)


def test_a_streamed_down_reads_weights_before_it_waits_and_h_after(variants: list[Facts]) -> None:
    """Weights are read with evict_first, and h is not: a hinted load ahead of the wait cannot be of h."""
    streamed = [each for each in variants if each["kernel"] == "swiglu_down_streamed"]
    waiting = [each for each in streamed if each["waits"]]
    assert waiting
    assert not offenders(waiting, lambda each: each["reads_before_wait"] == 0)
    assert not offenders(waiting, lambda each: each["unhinted_before_wait"] > 0)
    assert not offenders(waiting, lambda each: each["unhinted_after_wait"] == 0)


def test_nothing_is_computed_in_float64(variants: list[Facts]) -> None:
    """Liger's note on its SwiGLU: a scalar that arrives as fp64 promotes the whole chain, at twice the time."""
    assert not offenders(variants, lambda each: each["float64"] > 0)


def test_large_tiles_use_hoppers_own(variants: list[Facts]) -> None:
    hopper = [each for each in variants if each["capability"] == 90 and "128x128x64" in each["job"]]
    assert hopper
    assert not offenders(hopper, lambda each: each["wgmma"] == 0)


def test_aligned_loads_are_128_bits_wide(variants: list[Facts]) -> None:
    """Straight into registers, or copied into shared memory, or by descriptor; never narrower.

    But for a streamed kernel's one or two tokens: too short a stretch for so many threads, in L2.
    """

    def is_narrow(each: Facts) -> bool:
        wide = each["wide_loads"] or each["bulk_copies"] or each["copied_bytes"]
        # The counter of a tile that programs share is one word.
        narrow = set(each["narrow_loads"]) - {"ld.global.gpu.acquire.b32"}
        if each["kernel"].endswith("_streamed"):
            narrow -= {"ld.global.v2.b32"}
        return not wide or bool(narrow) or not set(each["copied_bytes"]) <= {16}

    assert not offenders([each for each in variants if each["is_aligned"]], is_narrow)


def test_products_load_ahead(variants: list[Facts]) -> None:
    """Operands of aligned products are copied asynchronously: the pipeline was not dropped."""
    products = [
        each for each in variants if each["is_aligned"] and each["kernel"] in BY_TENSOR_CORES
    ]
    assert not offenders(products, lambda each: not (each["copied_bytes"] or each["bulk_copies"]))


def test_an_odd_width_costs_the_elementwise_gate_nothing_but_its_tail(
    variants: list[Facts],
) -> None:
    """Matrices as torch allocates them are one long row: its bulk is loaded and stored 128 bits at a time."""
    odd = [each for each in variants if "4097x14335" in each["job"] and "apart" in each["job"]]
    assert odd
    assert not offenders(odd, lambda each: not (each["wide_loads"] and each["wide_stores"]))


def test_the_gate_leaves_room_for_enough_threads(variants: list[Facts]) -> None:
    """What hides memory's latency is threads: 40 registers leave three quarters of a multiprocessor's 2048."""
    gates = [each for each in variants if each["kernel"] == "swiglu_gate" and each["is_aligned"]]
    fast = [each for each in gates if "fp32_epilogue" in each["job"]]
    assert fast
    assert not offenders(fast, lambda each: each["registers"] > 40)
