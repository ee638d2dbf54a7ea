"""A process that sends: ``python -m gatefuse.commands.loadtest.process``, led over its standard input and output.

It is apart from the process that draws progress bars and tables, so that neither takes time from
the other.

    {"setup": ...}               -> {"ok": true} {"probe": target}            -> {"expected": ...}
    the right answers as one model gives them, row by row {"expect": ...}              -> {"ok":
    true}           the same, for the other processes {"cell": job}                -> {"ok": true}
    connected and ready {"start": instant}           -> {"report": ...}        an instant of
    time.monotonic, the same in all processes
"""

from __future__ import annotations

import asyncio
import base64
import gc
import signal
import sys
import time
from collections.abc import Callable
from json import loads
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import grpc
import grpc.aio
import numpy as np
from numpy.typing import NDArray

from gatefuse.client.messages import Rows, infer_request, method
from gatefuse.commands.loadtest.answers import AnswerForm, AnswerLog, FirstAnswers
from gatefuse.commands.loadtest.evaluate import evaluate, rounded
from gatefuse.commands.loadtest.jobs import CellJob, CellReport, Setup, Target, setup_of, to_line
from gatefuse.commands.loadtest.runner import Runner, connect
from gatefuse.commands.loadtest.schedule import arrival_times
from gatefuse.commands.loadtest.sources import (
    Draw,
    LayerRows,
    draw_requests,
    file_tables,
    random_tables,
)
from gatefuse.wire import Datatype, encode

_Scalar = TypeVar("_Scalar", bound=np.generic)

CONNECT_TIMEOUT_S = 15.0
# Different requests of a cell: enough that rows meet ever other neighbours, few enough to fit in
# memory.
MAX_REQUESTS = 64
MAX_REQUEST_BYTES = 128 * 2**20


class Sender:
    """Everything that a sending process keeps from cell to cell."""

    def __init__(self, setup: Setup) -> None:
        """Reads or draws the rows."""
        self._setup = setup
        self._datatype = Datatype.parse(setup.datatype)
        source = setup.source
        self._tables: tuple[LayerRows, ...] = (
            file_tables(Path(source.path), exact=source.exact, layers=source.layers)
            if source.path
            else random_tables(source.inputs * source.columns, source.layers or [None], source.seed)
        )
        self._columns = self._tables[0].inputs.shape[1] // source.inputs
        self._expected = [t.exact for t in self._tables if t.exact is not None]
        width = source.outputs * self._columns
        self._first = FirstAnswers([(len(table.inputs), width) for table in self._tables])

    async def probe(self, target: Target) -> list[NDArray[np.float64]]:
        """Asks for every row on its own: nothing can be mixed up in a batch of one."""
        channels = await connect(self._setup.url, 1, CONNECT_TIMEOUT_S)
        try:
            call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channels[0].unary_unary(
                method("ModelInfer"), None, None
            )
            form = AnswerForm(target.outputs, self._columns)
            expected = []
            for number, table in enumerate(self._tables):
                count = len(table.inputs)
                answers = np.empty((count, len(target.outputs) * self._columns), np.float64)
                for row in range(count):
                    request = self._request(target, Draw(number, np.array([row])))
                    response = await call(request, timeout=self._setup.timeout_s)
                    answers[row] = form.rows_of(form.read(response, 1), 1)
                expected.append(answers)
        finally:
            await channels[0].close()
        return expected

    def expect(self, expected: list[NDArray[np.float64]]) -> None:
        """Takes the right answers that another process has asked for."""
        self._expected = expected

    async def connect(self) -> list[grpc.aio.Channel]:
        """Opens the connections for one cell."""
        return await connect(self._setup.url, self._setup.connections, CONNECT_TIMEOUT_S)

    async def run(
        self, job: CellJob, channels: list[grpc.aio.Channel], start_s: float
    ) -> CellReport:
        """Sends this process' part of a cell and reports."""
        share = job.load.share(self._setup.part, self._setup.parts)
        if share is None:
            return CellReport(np.empty(0))
        window_s = (start_s + job.warm_up_s, start_s + job.warm_up_s + job.seconds)
        draws = self._draws(job.rows)
        log = self._log(job, draws, window_s)
        requests = [self._request(job.target, draw) for draw in draws]
        runner = Runner(channels, requests, self._setup.timeout_s, log.add)
        await asyncio.sleep(max(0.0, start_s - time.monotonic()))
        cpu_s, began_s = time.process_time(), time.monotonic()
        if share.is_open:
            due_s = start_s + arrival_times(
                job.load,
                job.warm_up_s + job.seconds,
                part=self._setup.part,
                parts=self._setup.parts,
                seed=self._setup.seed,
            )
            await runner.open_loop(due_s, max(1, self._setup.max_outstanding // self._setup.parts))
        else:
            await runner.closed_loop(share.concurrency, window_s[1])
        busy = (time.process_time() - cpu_s) / (time.monotonic() - began_s)
        return _report(runner, log, window_s, busy)

    def _draws(self, rows: int) -> tuple[Draw, ...]:
        bytes_each = rows * self._tables[0].inputs.shape[1] * self._datatype.itemsize
        # At least one request for each layer.
        count = max(len(self._tables), min(MAX_REQUESTS, MAX_REQUEST_BYTES // bytes_each))
        return draw_requests(self._tables, rows, count, self._setup.seed + self._setup.part)

    def _log(
        self, job: CellJob, draws: tuple[Draw, ...], window_s: tuple[float, float]
    ) -> AnswerLog:
        log = AnswerLog(draws, AnswerForm(job.target.outputs, self._columns), window_s)
        if job.row_gate is not None:
            log.check(self._right_answers(job.target), job.row_gate)
            log.compare_with(self._first, learning=job.target.is_first)
        return log

    def _right_answers(self, target: Target) -> list[NDArray[np.float64]]:
        if not target.expression:
            return self._expected
        # The inputs are rounded to what travels, and then to what the model computes in.
        datatypes = (self._datatype, Datatype[target.dtype.upper()])
        answers = []
        for table in self._tables:
            values = rounded(table.inputs, *datatypes)
            inputs = dict(zip(target.inputs, self._inputs(target, values), strict=True))
            answers.append(np.concatenate(evaluate(target.program, inputs), axis=1))
        return answers

    def _request(self, target: Target, draw: Draw) -> bytes:
        table = self._tables[draw.table]
        shape = (len(draw.indices), self._columns)
        inputs = {
            name: Rows(encode(values, self._datatype), shape, self._datatype)
            for name, values in zip(
                target.inputs, self._inputs(target, table.inputs[draw.indices]), strict=True
            )
        }
        # Answers must have the outputs in this order; a single one need not be asked for.
        outputs = target.outputs if len(target.outputs) > 1 else None
        return infer_request(target.name, inputs, table.layer, outputs).SerializeToString()

    @staticmethod
    def _inputs(target: Target, rows: NDArray[_Scalar]) -> list[NDArray[_Scalar]]:
        """Parts rows into the model's inputs."""
        return np.split(rows, len(target.inputs), axis=1)


def _report(
    runner: Runner, log: AnswerLog, window_s: tuple[float, float], busy: float
) -> CellReport:
    samples = runner.samples
    report = CellReport(
        samples.latencies_s(*window_s),
        errors=dict(samples.errors),
        error_text=samples.error_text,
        unsent=samples.unsent,
        busy=busy,
        lag_p99_s=float(np.percentile(samples.lag_s, 99)) if samples.lag_s else 0.0,
    )
    log.settle()
    report.malformed = log.malformed
    report.error_text = report.error_text or log.malformed_text
    report.answers = log.errors
    report.versus_first = log.versus_errors
    costs = log.costs
    report.costed, report.batches = costs.answers, costs.batches
    report.launches, report.bytes_moved = costs.launches, costs.bytes_moved
    report.queue_us, report.compute_us = costs.queue_us, costs.compute_us
    report.backends = sorted(costs.backends)
    return report


def pack_expected(expected: list[NDArray[np.float64]]) -> list[dict[str, Any]]:
    """Returns what JSON can hold."""
    return [
        {"shape": array.shape, "data": base64.b64encode(array.tobytes()).decode()}
        for array in expected
    ]


def unpack_expected(fields: list[dict[str, Any]]) -> list[NDArray[np.float64]]:
    """Undoes ``pack_expected``."""
    return [
        np.frombuffer(base64.b64decode(entry["data"]), np.float64).reshape(entry["shape"])
        for entry in fields
    ]


def _serve(lines: BinaryIO, replies: BinaryIO, runner: asyncio.Runner) -> None:
    sender: Sender | None = None
    job: CellJob | None = None
    channels: list[grpc.aio.Channel] = []
    for line in lines:
        message = loads(line)
        reply: dict[str, Any] = {"ok": True}
        try:
            if "setup" in message:
                sender = Sender(setup_of(message["setup"]))
            assert sender is not None
            if "probe" in message:
                expected = runner.run(sender.probe(Target(**message["probe"])))
                reply = {"expected": pack_expected(expected)}
            elif "expect" in message:
                sender.expect(unpack_expected(message["expect"]))
            elif "cell" in message:
                job = CellJob.of(message["cell"])
                channels = runner.run(sender.connect())
            elif "start" in message:
                assert job is not None
                reply = {"report": _run_cell(sender, job, channels, message["start"], runner)}
        except Exception as error:
            # Whatever it is, the leading process has to hear of it: it is waiting for a reply.
            reply = {"error": f"{type(error).__name__}: {_text(error)}"}
        replies.write(to_line(reply))
        replies.flush()


def _run_cell(
    sender: Sender,
    job: CellJob,
    channels: list[grpc.aio.Channel],
    start_s: float,
    runner: asyncio.Runner,
) -> dict[str, Any]:
    # What exists now stays: the collector need not walk through it while times are taken.
    gc.collect()
    gc.freeze()

    async def run() -> CellReport:
        try:
            return await sender.run(job, channels, start_s)
        finally:
            await asyncio.gather(*(channel.close() for channel in channels))

    return runner.run(run()).to_fields()


def _text(error: Exception) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    # uvloop takes a fifth less time for each request; the load test does without where it is not
    # installed.
    try:
        import uvloop
    except ModuleNotFoundError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


def main() -> int:
    """Serves the leading process until it closes the input."""
    # Ctrl-C reaches every process of the terminal; the leading one ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        _serve(sys.stdin.buffer, sys.stdout.buffer, runner)
    return 0


if __name__ == "__main__":
    sys.exit(main())
