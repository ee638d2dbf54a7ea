"""One run: compiles ahead, then measures the gate, each shape's floor and each of its points."""

import time
from collections.abc import Callable

import torch

from gatefuse_kernels.bench.compilers import silence
from gatefuse_kernels.bench.copies import weight_copies
from gatefuse_kernels.bench.elementwise import measure_gate
from gatefuse_kernels.bench.errors import WrongAnswerError
from gatefuse_kernels.bench.facts import run_facts
from gatefuse_kernels.bench.floor import measure_floor
from gatefuse_kernels.bench.invariance import check_invariance
from gatefuse_kernels.bench.memory import memory_watched
from gatefuse_kernels.bench.options import Options
from gatefuse_kernels.bench.peers import all_peers
from gatefuse_kernels.bench.point import PointBench
from gatefuse_kernels.bench.results import Floor, GateResult, Invariance, Point, Report
from gatefuse_kernels.bench.timing import Pace
from gatefuse_kernels.bench.warm import compile_ahead
from gatefuse_kernels.errors import BackendUnavailableError
from gatefuse_kernels.shapes import DType, MlpShape

_INVARIANCE_ROWS = 1024
_GATE_DTYPES = (DType.BF16, DType.FP32)


def run_bench(
    options: Options, say: Callable[[str], None], keep: Callable[[Report], None]
) -> Report:
    """Measure what the options ask for on the current device.

    Args:
        options: what to measure.
        say: told what happens, a line at a time.
        keep: given all there is so far, after each point.

    Raises:
        BackendUnavailableError: there is no CUDA device.
        WrongAnswerError: an answer of ours misses its accuracy gate.
        NoMemoryError: the device's memory does not hold what is measured.
    """
    if not torch.cuda.is_available():
        raise BackendUnavailableError("no CUDA device: the kernels are measured on a GPU")
    silence()
    run = _Run(options, say, keep)
    with memory_watched(lambda: run.doing), torch.no_grad():
        return run.run()


class _Run:
    """What has been found so far, and what finds the rest."""

    def __init__(
        self, options: Options, say: Callable[[str], None], keep: Callable[[Report], None]
    ) -> None:
        self._options = options
        self._say = say
        self._keep = keep
        self._start_s = time.monotonic()
        self.doing = "compiling"
        every = all_peers()
        self._peers = {name: every[name] for name in options.peers}
        self._facts = run_facts(self._peers)
        self._floors: list[Floor] = []
        self._points: list[Point] = []
        self._gates: list[GateResult] = []
        self._invariance: list[Invariance] = []
        self._not_measured: list[str] = []

    def run(self) -> Report:
        compile_ahead(self._options, self._peers, self._say)
        if self._options.elements:
            self._measure_gates()
        for shape in self._options.shapes:
            if not self._is_late(str(shape)):
                self._measure_shape(shape)
            # The shape's graphs are gone; only now is their memory free.
            torch.cuda.empty_cache()
        return self._report()

    def _measure_gates(self) -> None:
        for dtype in _GATE_DTYPES:
            self.doing = f"the elementwise gate of {self._options.elements} elements in {dtype}"
            found = measure_gate(self._options.elements, dtype, Pace(self._options.rounds))
            if found is None:
                raise WrongAnswerError(f"the elementwise gate in {dtype} misses its accuracy gate")
            self._gates.append(found)
            self._tell(f"gate {dtype}: {found.verdict.value:.3f} of a copy's bandwidth")

    def _measure_shape(self, shape: MlpShape) -> None:
        options = self._options
        self.doing = f"the weights of {shape}"
        copies = weight_copies(shape, options.dtype, torch.device("cuda"))
        found, read = measure_floor(copies, Pace(options.rounds))
        self._floors.append(found)
        self._tell(f"{shape}: {found.read_tb_per_s:.2f} TB/s read by {found.reader}")
        if options.deterministic:
            largest = min(max(options.rows), _INVARIANCE_ROWS)
            checked = check_invariance(copies[0].weights, options.compositions, largest)
            self._invariance.append(checked)
            self._tell(f"{shape}: {checked.different_rows} of {checked.rows} rows differ in bits")
        points = PointBench(copies, read, self._peers, options, self._say)
        for rows in options.rows:
            if self._is_late(f"{shape}, {rows} rows"):
                continue
            self.doing = f"{shape}, {rows} rows"
            point = points.measure(rows)
            self._points.append(point)
            self._tell(f"{shape}, {rows} rows: {point.ours.time.median_us:.1f} us")
            self._keep(self._report())
            torch.cuda.empty_cache()

    def _is_late(self, what: str) -> bool:
        late = 0 < self._options.budget_s < time.monotonic() - self._start_s
        if late:
            self._not_measured.append(what)
        return late

    def _tell(self, what: str) -> None:
        self._say(f"{time.monotonic() - self._start_s:4.0f} s  {what}")

    def _report(self) -> Report:
        return Report(
            self._options.command,
            self._facts,
            tuple(self._floors),
            tuple(self._points),
            tuple(self._gates),
            tuple(self._invariance),
            tuple(self._not_measured),
        )
