"""One run over chains: times first, each chain by itself; then the profiler, over all."""

import time
from collections.abc import Callable

import torch

from gatefuse_kernels.bench.chains.measuring import ChainBench
from gatefuse_kernels.bench.chains.options import ChainOptions
from gatefuse_kernels.bench.chains.results import ChainReport, ChainResult, LaunchCheck
from gatefuse_kernels.bench.compilers import silence
from gatefuse_kernels.bench.facts import run_facts
from gatefuse_kernels.bench.memory import memory_watched
from gatefuse_kernels.errors import BackendUnavailableError

_TIMES_L2 = 4


def run_chains(
    options: ChainOptions, say: Callable[[str], None], keep: Callable[[ChainReport], None]
) -> ChainReport:
    """Measure what the options ask for on the current device.

    Args:
        options: what to measure.
        say: told what happens, a line at a time.
        keep: given all there is so far, after each chain.

    Raises:
        BackendUnavailableError: there is no CUDA device.
        WrongAnswerError: an answer of ours is wrong.
        NoMemoryError: the device's memory does not hold what is measured.
    """
    if not torch.cuda.is_available():
        raise BackendUnavailableError("no CUDA device: chains are measured on a GPU")
    silence()
    run = _Run(options, say, keep)
    with memory_watched(lambda: run.doing), torch.no_grad():
        return run.run()


class _Run:
    """What has been found so far, and what finds the rest."""

    def __init__(
        self,
        options: ChainOptions,
        say: Callable[[str], None],
        keep: Callable[[ChainReport], None],
    ) -> None:
        self._options = options
        self._say = say
        self._keep = keep
        self._start_s = time.monotonic()
        self.doing = "starting"
        self._facts = run_facts({})
        self._benches: list[tuple[ChainBench, ChainResult]] = []
        self._launches: list[LaunchCheck] = []
        self._not_measured: list[str] = []

    def run(self) -> ChainReport:
        for dtype in self._options.dtypes:
            for chain in self._options.chains:
                self.doing = f"{chain.name} {dtype}, {self._options.elements} elements"
                if 0 < self._options.budget_s < time.monotonic() - self._start_s:
                    self._not_measured.append(f"{chain.name} {dtype}")
                    continue
                bench = ChainBench(chain, dtype, self._options, self._say, torch.device("cuda"))
                self._add(bench, bench.measure())
                # The graphs are gone; only now is their memory free.
                torch.cuda.empty_cache()
        for bench, result in self._benches:
            self.doing = f"{result.title} under the profiler"
            self._launches += bench.profile(result)
        return self._report()

    def _add(self, bench: ChainBench, result: ChainResult) -> None:
        self._benches.append((bench, result))
        spent_s = time.monotonic() - self._start_s
        self._say(
            f"{spent_s:4.0f} s  {result.title}: {result.copy_share:.3f} of a copy's bandwidth"
        )
        moved = min(traffic.bytes_moved for traffic in result.traffic.values())
        if moved < _TIMES_L2 * int(self._facts["l2_bytes"]):
            self._say(f"{result.title}: L2 holds much of it: these are no times of memory")
        self._keep(self._report())

    def _report(self) -> ChainReport:
        return ChainReport(
            self._options.command,
            self._facts,
            tuple(result for _, result in self._benches),
            tuple(self._launches),
            tuple(self._not_measured),
        )
