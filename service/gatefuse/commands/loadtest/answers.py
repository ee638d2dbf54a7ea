"""Looks at every answer of one cell: what it cost, and whether it is right.

Looking must not disturb the measurement, and the same request is answered the same most of the
time. So an answer that is bit for bit one that came before is only counted, at the price of a
comparison of memory; a new one is kept and compared with the expected rows after the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import grpc
import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from gatefuse.client.messages import Cost, InferenceError, RawResult, raw_result
from gatefuse.commands.loadtest.checks import Errors, compare
from gatefuse.commands.loadtest.sources import Draw
from gatefuse.wire import decode
from gatefuse_protos import open_inference_pb2 as pb

# Answers kept for the time after the run. A server whose answers depend on the batch gives more
# different ones; beyond this they are compared at once, and latencies suffer rather than memory.
MAX_KEPT_BYTES = 256 * 2**20


@dataclass(slots=True)
class CostSums:
    """Costs summed over the answers that count; a request's part of a batch is its share of the rows."""

    answers: int = 0
    batches: float = 0.0
    launches: float = 0.0
    bytes_moved: float = 0.0
    queue_us: int = 0
    compute_us: int = 0
    backends: set[str] = field(default_factory=set)

    def add(self, cost: Cost, rows: int) -> None:
        """Adds one answer's cost."""
        share = cost.share(rows)
        self.answers += 1
        self.batches += share
        self.launches += share * cost.kernel_launches
        self.bytes_moved += share * cost.bytes_moved
        self.queue_us += cost.queue_us
        self.compute_us += cost.compute_us
        if cost.backend:
            self.backends.add(cost.backend)


@dataclass(slots=True)
class _Kept:
    raw: RawResult
    times: int = 1


class FirstAnswers:
    """For each row of each table the first answer that the first model gave: what other models are compared with."""

    def __init__(self, shapes: Sequence[tuple[int, int]]) -> None:
        """Knows nothing yet; ``shapes`` are those of all answers to each of the source's tables."""
        self._rows = [np.empty(shape, np.float64) for shape in shapes]
        # An answer may be NaN, so rows that nobody has answered yet are told apart by this alone.
        self._known = [np.zeros(shape[0], np.bool_) for shape in shapes]

    def learn(self, draw: Draw, answer: NDArray[np.floating]) -> None:
        """Keeps the rows that it has no answer for yet."""
        unknown = ~self._known[draw.table][draw.indices]
        indices = draw.indices[unknown]
        self._rows[draw.table][indices] = answer[unknown]
        self._known[draw.table][indices] = True

    def compare(self, draw: Draw, answer: NDArray[np.floating], times: int) -> Errors:
        """Compares the rows that it has an answer for."""
        expected = self._rows[draw.table][draw.indices]
        known = self._known[draw.table][draw.indices]
        return compare(answer[known], expected[known], np.inf, times)


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """What an answer is made of: ``outputs`` of ``columns`` elements a row."""

    outputs: Sequence[str]
    columns: int

    def read(self, response: bytes, rows: int) -> RawResult:
        """Returns a serialised answer to ``rows`` rows.

        Raises DecodeError or InferenceError if it is not one.
        """
        raw = raw_result(pb.ModelInferResponse.FromString(response), (rows, self.columns))
        if list(raw.contents) != list(self.outputs):
            raise InferenceError(
                grpc.StatusCode.INTERNAL,
                f"the answer has {', '.join(raw.contents)}, not {', '.join(self.outputs)}",
            )
        return raw

    def rows_of(self, raw: RawResult, rows: int) -> NDArray[np.floating]:
        """Returns an answer's outputs side by side: [rows, outputs * columns]."""
        shape = (rows, self.columns)
        arrays = [decode(content, raw.datatype, shape) for content in raw.contents.values()]
        return arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis=1)


class AnswerLog:
    """The answers of one cell."""

    def __init__(
        self,
        draws: Sequence[Draw],
        answer: AnswerForm,
        window_s: tuple[float, float],
    ) -> None:
        """Expects answers to ``draws``.

        Args:
            draws: The requests; all of one number of rows.
            answer: What an answer is made of.
            window_s: Answers that come from its begin up to its end count for the costs.
        """
        self.costs = CostSums()
        self.errors = Errors()
        self.malformed = 0
        self.malformed_text = ""
        self._draws = draws
        self._answer = answer
        self._window_s = window_s
        self._expected: Sequence[NDArray[np.float64]] | None = None
        self._row_gate = 0.0
        self._kept: list[list[_Kept]] = [[] for _ in draws]
        self._kept_bytes = 0
        self._versus: FirstAnswers | None = None
        self._learning = False
        self.versus_errors = Errors()

    def check(self, expected: Sequence[NDArray[np.float64]], row_gate: float) -> None:
        """Also compares with the right answers.

        Args:
            expected: For each of the source's tables the right answers, outputs side by side.
            row_gate: The largest relative error of a row that is right.
        """
        self._expected = expected
        self._row_gate = row_gate

    def compare_with(self, first: FirstAnswers, *, learning: bool) -> None:
        """Also compares with the first model's answers, or learns them if this is the first model."""
        self._versus = first
        self._learning = learning

    def add(self, number: int, response: bytes, done_s: float) -> None:
        """Takes the answer to request ``number`` that was there at ``done_s``."""
        draw = self._draws[number]
        rows = len(draw.indices)
        try:
            raw = self._answer.read(response, rows)
        except (InferenceError, DecodeError) as error:
            self.malformed += 1
            self.malformed_text = self.malformed_text or str(error)
            return
        if self._window_s[0] <= done_s < self._window_s[1]:
            self.costs.add(raw.cost, rows)
        if self._expected is None:
            return
        for kept in self._kept[number]:
            if kept.raw.contents == raw.contents and kept.raw.datatype is raw.datatype:
                kept.times += 1
                return
        self._kept[number].append(_Kept(raw))
        self._kept_bytes += sum(map(len, raw.contents.values()))
        if self._kept_bytes > MAX_KEPT_BYTES:
            self.settle()

    def settle(self) -> None:
        """Compares all answers kept so far with what was expected, and lets them go."""
        if self._expected is None:
            return
        for draw, kept_answers in zip(self._draws, self._kept, strict=True):
            expected = self._expected[draw.table][draw.indices]
            for kept in kept_answers:
                answer = self._answer.rows_of(kept.raw, len(expected))
                self.errors += compare(answer, expected, self._row_gate, kept.times)
                self._settle_versus(draw, answer, kept.times)
            kept_answers.clear()
        self._kept_bytes = 0

    def _settle_versus(self, draw: Draw, answer: NDArray[np.floating], times: int) -> None:
        if self._versus is None:
            return
        if self._learning:
            self._versus.learn(draw, answer)
        else:
            self.versus_errors += self._versus.compare(draw, answer, times)
