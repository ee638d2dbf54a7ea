"""Elementwise programs: the seeds' trips, and what each launch reads and writes."""

from __future__ import annotations

import pytest

from gatefuse_kernels.expression import Program, parse_program
from gatefuse_kernels.shapes import DType
from gatefuse_kernels.traffic import (
    KernelTraffic,
    Transfer,
    passes,
    peak_intermediate_bytes,
    program_traffic,
)

ROWS, COLUMNS = 7, 33
TENSOR = ROWS * COLUMNS * 4
SCALE = {"scale": 0.5}


def launches(text: str, backend: str = "eager", dtype: DType = DType.FP32) -> list[KernelTraffic]:
    program = parse_program(text, SCALE, ("v",))
    return list(program_traffic(program, backend, ROWS, COLUMNS, dtype))


@pytest.mark.parametrize(
    ("text", "steps", "fused"),
    [
        ("x * 2 + 3", [2, 2], 2),
        ("silu(g) * u", [2, 3], 3),
        ("gelu(x) * scale + residual", [2, 2, 3], 3),
    ],
)
def test_the_seeds_trips(text: str, steps: list[int], fused: int) -> None:
    """4 become 2, 5 become 3, 7 become 3."""
    assert [launch.passes for launch in launches(text)] == steps
    for backend in ("compiled", "fused"):
        (launch,) = launches(text, backend)
        assert launch.passes == fused
        assert launch.bytes_moved == fused * TENSOR
        assert launch.flops == sum(each.flops for each in launches(text))


def test_tensors_by_name() -> None:
    gelu, scaled, added = launches("gelu(x) * scale + residual")
    assert (gelu.kernel, scaled.kernel, added.kernel) == ("eager_gelu", "eager_mul", "eager_add")
    assert gelu.reads == (Transfer("x", TENSOR),)
    assert scaled.reads == gelu.writes
    assert {read.tensor for read in added.reads} == {scaled.writes[0].tensor, "residual"}
    assert added.writes == (Transfer("y", TENSOR),)


def test_a_tensor_that_is_taken_twice_is_read_once() -> None:
    (launch,) = launches("x * x")
    assert launch.reads == (Transfer("x", TENSOR),)


def test_a_selection_copies_what_has_another_type() -> None:
    """Of bf16 t and fp16 v both become fp32 first; a constant has the right type from the start."""
    text = "t = bf16(x); y = where(t > 0, t, v); z = where(t > 0, t, 1)"
    found = launches(text, dtype=DType.FP16)
    names = [launch.kernel for launch in found]
    casts = [launch for launch in found if launch.kernel == "eager_cast"]
    assert names.count("eager_cast") == 2
    assert [launch.bytes_moved for launch in casts] == [ROWS * COLUMNS * (2 + 4), COLUMNS * (2 + 4)]
    first, second = (launch for launch in found if launch.kernel == "eager_where")
    assert sum(read.nbytes for read in first.reads) == (1 + 4) * ROWS * COLUMNS + 4 * COLUMNS
    assert sum(read.nbytes for read in second.reads) == (1 + 2) * ROWS * COLUMNS


def test_a_vector_is_read_and_is_no_trip() -> None:
    (launch,) = launches("x * v")
    assert launch.reads == (Transfer("x", TENSOR), Transfer("v", COLUMNS * 4, trips=0))
    assert launch.passes == 2


def test_steps_on_vectors_alone_are_small() -> None:
    """Here v + 1 has a value for each column: one small launch of its own in eager, nothing in fused."""
    first, second = launches("x * (v + 1)")
    assert (first.passes, first.bytes_moved, first.flops) == (0, 2 * COLUMNS * 4, COLUMNS)
    assert (second.passes, second.flops) == (2, ROWS * COLUMNS)
    (fused,) = launches("x * (v + 1)", "fused")
    assert fused.bytes_moved == 2 * TENSOR + COLUMNS * 4


def test_a_truth_value_takes_one_byte() -> None:
    compared, chosen = launches("where(x > 0, x, y)")
    assert compared.written_bytes == ROWS * COLUMNS
    assert chosen.read_bytes == 2 * TENSOR + ROWS * COLUMNS


def test_a_cast_makes_smaller_tensors_in_eager_alone() -> None:
    cast, scaled, copied = launches("bf16(x) * 2")
    assert (cast.written_bytes, scaled.written_bytes) == (TENSOR // 2, TENSOR // 2)
    assert (copied.kernel, copied.read_bytes, copied.written_bytes) == (
        *("eager_copy", TENSOR // 2),
        TENSOR,
    )
    assert launches("bf16(x) * 2", "fused")[0].bytes_moved == 2 * TENSOR


@pytest.mark.parametrize(
    ("text", "outputs"),
    [("a = exp(x); b = a", ("a", "b")), ("a = x", None), ("a = 3.0; b = x", None)],
)
def test_an_output_that_no_step_writes_is_a_copy(
    text: str, outputs: tuple[str, ...] | None
) -> None:
    program: Program = parse_program(text, {}, (), outputs)
    found = program_traffic(program, "eager", ROWS, COLUMNS, DType.FP32)
    written = [write.tensor for launch in found for write in launch.writes]
    assert sorted(written) == sorted(program.outputs)
    assert len(found) == max(len(program.steps), len(program.outputs))


def test_two_outputs_of_one_launch() -> None:
    (one,) = launches("a = x + 1; b = a * u", "fused")
    assert [write.tensor for write in one.writes] == ["b"]
    program = parse_program("a = x + 1; b = a * u", {}, (), ("a", "b"))
    (both,) = program_traffic(program, "fused", ROWS, COLUMNS, DType.FP32)
    assert [write.tensor for write in both.writes] == ["a", "b"]
    assert both.passes == 4


def test_intermediates_live_until_they_are_last_read() -> None:
    """Two of a plain chain at a time; three where the first is wanted again at the end."""
    chain = launches("exp(x) * 2 + 3")
    assert peak_intermediate_bytes(chain, ("y",)) == 2 * TENSOR
    kept = launches("t = exp(x); y = tanh(sigmoid(t)) + t")
    assert peak_intermediate_bytes(kept, ("y",)) == 3 * TENSOR
    assert peak_intermediate_bytes(launches("exp(x) * 2 + 3", "fused"), ("y",)) == 0


def test_a_wide_chain_is_one_launch_however_long() -> None:
    text = " + ".join(f"x * {number}" for number in range(2, 9))
    assert len(launches(text)) == 13
    (launch,) = launches(text, "fused")
    assert passes([launch]) == 2


def test_an_unknown_backend() -> None:
    with pytest.raises(ValueError, match="use one of eager, compiled, fused"):
        launches("x + 1", "textbook")
