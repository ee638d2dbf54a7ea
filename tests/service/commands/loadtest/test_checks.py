"""Which answers are right: the gates, and the answers of one cell."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import linear, silu

from gatefuse.client.messages import InferenceError
from gatefuse.commands.loadtest.answers import AnswerForm, AnswerLog, FirstAnswers
from gatefuse.commands.loadtest.checks import Errors, Gate, compare, gate_for, problems
from gatefuse.commands.loadtest.sources import Draw
from gatefuse.wire import Datatype, encode
from gatefuse_protos import open_inference_pb2 as pb

HIDDEN, INTERMEDIATE, ROWS = 256, 688, 32
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
WIRE = {"fp32": Datatype.FP32, "fp16": Datatype.FP16, "bf16": Datatype.BF16}


def _mlp(dtype: str, *, fused: bool) -> tuple[Tensor, Tensor]:
    """Returns the answers of a served MLP, and the exact ones."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        numbers = torch.randn(shape, generator=generator) / math.sqrt(shape[-1])
        return numbers.to(DTYPES[dtype])

    gate, up, down = (
        random(INTERMEDIATE, HIDDEN),
        random(INTERMEDIATE, HIDDEN),
        random(HIDDEN, INTERMEDIATE),
    )
    x = (torch.randn((ROWS, HIDDEN), generator=generator) * 2).to(DTYPES[dtype])
    gate64, up64, down64, x64 = (tensor.double() for tensor in (gate, up, down, x))
    exact = linear(silu(linear(x64, gate64)) * linear(x64, up64), down64)
    if fused:
        h = (silu(linear(x.float(), gate.float())) * linear(x.float(), up.float())).to(
            DTYPES[dtype]
        )
        return linear(h.float(), down.float()).to(DTYPES[dtype]), exact
    return linear(silu(linear(x, gate)) * linear(x, up), down), exact


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("backend", ["fused", "eager"])
def test_honest_answers_pass_their_gate_with_little_to_spare(backend: str, dtype: str) -> None:
    answer, exact = _mlp(dtype, fused=backend == "fused")
    gate = gate_for(backend, dtype, WIRE[dtype], exact=True)
    errors = compare(answer.double().numpy(), exact.numpy(), gate.row)
    assert problems(errors, gate) == []
    if dtype != "fp32":
        assert errors.relative > gate.total / 3


def test_coarser_of_dtype_and_datatype_decides() -> None:
    assert gate_for("eager", "bf16", Datatype.FP32, exact=True) == gate_for(
        "eager", "bf16", Datatype.BF16, exact=True
    )
    assert gate_for("eager", "fp32", Datatype.FP16, exact=True) == gate_for(
        "eager", "fp16", Datatype.FP16, exact=True
    )
    assert gate_for("eager", "", Datatype.FP32, exact=True) == gate_for(
        "eager", "bf16", Datatype.FP32, exact=True
    )
    tight, wide = (
        gate_for(name, "bf16", Datatype.BF16, exact=True) for name in ("fused", "compiled")
    )
    assert tight.total < wide.total < gate_for("fused", "bf16", Datatype.BF16, exact=False).total


def _expected(rows: int = 4) -> NDArray[np.float64]:
    return np.random.default_rng(1).standard_normal((rows, 8))


def test_swapped_rows_are_wrong() -> None:
    expected = _expected()
    errors = compare(expected[[1, 0, 2, 3]], expected, Gate.of(4e-3).row)
    assert errors.wrong_rows == 2
    assert "2 of 4 rows are wrong" in problems(errors, Gate.of(4e-3))[0]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_none_is_wrong(bad: float) -> None:
    expected = _expected()
    answer = expected.copy()
    answer[2, 3] = bad
    errors = compare(answer, expected, 1e-2)
    assert errors.wrong_rows == 1
    assert errors.worst_row == np.inf
    assert problems(errors, Gate.of(1.0))


def test_rows_of_zeros() -> None:
    zeros = np.zeros((2, 4))
    assert compare(zeros, zeros, 1e-3).wrong_rows == 0
    assert compare(np.full((2, 4), 1e-30), zeros, 1e-3).wrong_rows == 2
    assert compare(np.empty((0, 4)), np.empty((0, 4)), 1e-3) == Errors()


def test_small_errors_everywhere_are_found_by_the_whole() -> None:
    expected = _expected(64)
    errors = compare(expected * 1.008, expected, Gate.of(4e-3).row)
    assert errors.wrong_rows == 0
    assert problems(errors, Gate.of(4e-3)) == ["the error over all rows is 0.008, above 0.004"]


def test_errors_add_up() -> None:
    expected = _expected()
    once = compare(expected + 0.1, expected, 1e-3)
    both = once + compare(expected, expected, 1e-3, times=3)
    assert (both.rows, both.wrong_rows) == (16, 4)
    assert both.relative == pytest.approx(once.relative / 2)
    assert compare(expected + 0.1, expected, 1e-3, times=5).relative == pytest.approx(once.relative)


# The answers of one cell: two requests of two rows out of one table of three.
TABLE = np.random.default_rng(2).standard_normal((3, 4)).astype(np.float32)
DRAWS = (Draw(0, np.array([0, 1])), Draw(0, np.array([2, 0])))


def _response(
    rows: NDArray[np.float32], batch_rows: int = 8, shape: tuple[int, int] = (2, 4)
) -> bytes:
    response = pb.ModelInferResponse(raw_output_contents=[encode(rows)])
    response.outputs.add(name="output", datatype="FP32", shape=shape)
    for key, value in {
        "batch_rows": batch_rows,
        "kernel_launches": 2,
        "bytes_moved": 800,
        "queue_us": 5,
    }.items():
        response.parameters[key].int64_param = value
    response.parameters["backend"].string_param = "fused"
    return response.SerializeToString()


FORM = AnswerForm(["output"], 4)


def _log(row_gate: float = 1e-2) -> AnswerLog:
    log = AnswerLog(DRAWS, FORM, (10.0, 20.0))
    log.check([TABLE.astype(np.float64)], row_gate)
    return log


def test_every_answer_is_counted_and_only_different_ones_are_kept() -> None:
    log = _log()
    for _ in range(5):
        log.add(0, _response(TABLE[[0, 1]]), 15.0)
        log.add(1, _response(TABLE[[2, 0]]), 15.0)
    log.add(0, _response(TABLE[[0, 1]] * np.float32(1.001)), 15.0)
    assert [len(kept) for kept in log._kept] == [2, 1]
    log.settle()
    assert log.errors.rows == 22
    assert log.errors.wrong_rows == 0
    assert log.errors.worst_row == pytest.approx(1e-3, rel=0.01)


def test_one_wrong_answer_among_many_is_found() -> None:
    log = _log()
    for _ in range(50):
        log.add(0, _response(TABLE[[0, 1]]), 15.0)
    log.add(0, _response(TABLE[[1, 0]]), 15.0)
    log.settle()
    assert log.errors.wrong_rows == 2


def test_answers_outside_the_window_are_checked_but_cost_nothing() -> None:
    log = _log()
    for instant in (9.9, 20.0):
        log.add(0, _response(TABLE[[1, 0]]), instant)
    assert log.costs.answers == 0
    log.add(0, _response(TABLE[[0, 1]]), 10.0)
    assert log.costs.answers == 1
    log.settle()
    assert log.errors.wrong_rows == 4


def test_costs_are_shared_by_rows() -> None:
    log = _log()
    log.add(0, _response(TABLE[[0, 1]], batch_rows=8), 15.0)
    log.add(0, _response(TABLE[[0, 1]], batch_rows=2), 15.0)
    assert log.costs.batches == pytest.approx(1.25)
    assert log.costs.launches == pytest.approx(2.5)
    assert log.costs.bytes_moved == pytest.approx(1000)
    assert log.costs.queue_us == 10
    assert log.costs.backends == {"fused"}


@pytest.mark.parametrize(
    "response",
    [b"\xff\xff\xff", b"", _response(TABLE[[0, 1]], shape=(4, 2)), _response(TABLE[[0, 1, 2]])],
    ids=["garbage", "empty", "shape", "size"],
)
def test_answers_that_are_none(response: bytes) -> None:
    log = _log()
    log.add(0, response, 15.0)
    log.settle()
    assert (log.malformed, log.errors.rows) == (1, 0)
    assert log.malformed_text


def test_memory_is_bounded_by_comparing_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gatefuse.commands.loadtest.answers.MAX_KEPT_BYTES", 100)
    log = _log()
    for number in range(20):
        log.add(0, _response(TABLE[[0, 1]] * np.float32(1 + number * 1e-5)), 15.0)
        assert sum(len(kept) for kept in log._kept) <= 4
    log.settle()
    assert (log.errors.rows, log.errors.wrong_rows) == (40, 0)


def test_without_a_check_only_costs_are_kept() -> None:
    log = AnswerLog(DRAWS, FORM, (10.0, 20.0))
    log.add(0, _response(TABLE[[1, 0]]), 15.0)
    log.settle()
    assert (log.costs.answers, log.errors.rows) == (1, 0)


def test_models_are_compared_by_the_rows_that_both_have_answered() -> None:
    first = FirstAnswers([TABLE.shape])
    learning = _log()
    learning.compare_with(first, learning=True)
    learning.add(0, _response(TABLE[[0, 1]]), 15.0)
    learning.settle()
    other = _log()
    other.compare_with(first, learning=False)
    other.add(1, _response(TABLE[[2, 0]] * np.float32(1.001)), 15.0)
    other.settle()
    assert learning.versus_errors.rows == 0
    assert other.versus_errors.rows == 1
    assert other.versus_errors.worst_row == pytest.approx(1e-3, rel=0.01)


def test_models_are_compared_where_the_first_answered_no_number() -> None:
    table = np.array([[np.nan, 1.0], [2.0, 3.0]])
    first = FirstAnswers([table.shape])
    draw = Draw(0, np.array([0]))
    first.learn(draw, table[[0]])
    assert first.compare(draw, table[[0]], 1).relative == 0
    errors = first.compare(draw, np.array([[np.nan, 2.0]]), 1)
    assert errors.rows == 1
    assert errors.worst_row == pytest.approx(1)
    assert first.compare(Draw(0, np.array([1])), table[[1]], 1).rows == 0


def test_what_is_no_number_is_right_where_it_is_expected() -> None:
    expected = np.array([[np.nan, np.inf, 3.0, 4.0], [1.0, -np.inf, 2.0, 2.0]])
    assert compare(expected.astype(np.float32), expected, 1e-3).relative == 0
    for column, wrong in ((0, 1.0), (0, np.inf), (1, -np.inf), (1, np.nan), (2, np.nan)):
        answer = expected.astype(np.float32)
        answer[0, column] = wrong
        errors = compare(answer, expected, 1e-3)
        assert (errors.rows, errors.wrong_rows) == (2, 1)


def test_an_expression_of_many_roundings_has_a_wider_gate() -> None:
    def gate(backend: str, roundings: int) -> float:
        return gate_for(backend, "bf16", Datatype.BF16, exact=True, roundings=roundings).total

    assert gate("eager", 0) == gate("eager", 3) == gate("eager", 5)
    assert gate("eager", 20) == pytest.approx(2 * gate("eager", 5))
    assert gate("fused", 20) == gate("fused", 0)


def test_outputs_are_compared_side_by_side() -> None:
    form = AnswerForm(["a", "b"], 2)
    response = pb.ModelInferResponse()
    for name, values in (("a", [1, 2]), ("b", [3, 4])):
        response.outputs.add(name=name, datatype="FP32", shape=(1, 2))
        response.raw_output_contents.append(np.array(values, np.float32).tobytes())
    raw = form.read(response.SerializeToString(), 1)
    np.testing.assert_array_equal(form.rows_of(raw, 1), [[1, 2, 3, 4]])
    with pytest.raises(InferenceError, match="the answer has a, b, not b, a"):
        AnswerForm(["b", "a"], 2).read(response.SerializeToString(), 1)
