"""One chain in one dtype: every form captured, checked, then timed in turns with copies."""

from collections.abc import Callable, Mapping
from functools import partial

import torch

from gatefuse_kernels import dtypes
from gatefuse_kernels.audit.profiling import kernels_run
from gatefuse_kernels.bench.capture import capture_call
from gatefuse_kernels.bench.chains.cases import COLUMNS, Chain, rows_for
from gatefuse_kernels.bench.chains.checks import ChainCheck, is_repeatable
from gatefuse_kernels.bench.chains.compiling import ChainCall, compile_chain
from gatefuse_kernels.bench.chains.options import ChainOptions
from gatefuse_kernels.bench.chains.results import (
    COMPILED,
    EAGER,
    FUSED,
    ChainResult,
    FormTraffic,
    LaunchCheck,
)
from gatefuse_kernels.bench.elementwise import copy_calls
from gatefuse_kernels.bench.errors import WrongAnswerError
from gatefuse_kernels.bench.results import Measured, PeerResult, State
from gatefuse_kernels.bench.timing import Call, Pace, take_turns
from gatefuse_kernels.elementwise import Elementwise, build_elementwise
from gatefuse_kernels.expression import Program, parse_program
from gatefuse_kernels.launch.launches import captured_kernels
from gatefuse_kernels.ledger import Ledger
from gatefuse_kernels.shapes import DType
from gatefuse_kernels.traffic import passes, program_traffic

_SHORTER = "shorter"
_SECONDS = 0.5
"""Of timed rounds."""

_COPIES = ("torch", "triton")
"""In the order of `copy_calls`."""


class _Tensors:
    """Normal values in inputs and outputs `[M, COLUMNS]`, as large as what is measured."""

    def __init__(self, program: Program, rows: int, dtype: DType, device: torch.device) -> None:
        generator = torch.Generator(device).manual_seed(0)
        self.inputs = [_normal((rows, COLUMNS), dtype, generator) for _ in program.inputs]
        self.outputs = [_normal((rows, COLUMNS), dtype, generator) for _ in program.outputs]


class ChainBench:
    """Measures one chain in one dtype; between calls it holds no memory to speak of."""

    def __init__(
        self,
        chain: Chain,
        dtype: DType,
        options: ChainOptions,
        say: Callable[[str], None],
        device: torch.device,
    ) -> None:
        """Build every form; nothing is compiled yet.

        Args:
            chain: what to compute.
            dtype: of every tensor.
            options: of the run: how large the tensors are, and how many rounds are timed.
            say: told why a peer fails.
            device: where it runs.
        """
        self._chain, self._dtype, self._device, self._say = chain, dtype, device, say
        self._program = chain.program
        self._rows = rows_for(options.elements)
        self._pace = Pace(options.rounds, _SECONDS)
        generator = torch.Generator(device).manual_seed(1)
        self._vectors = {
            name: _normal((COLUMNS,), dtype, generator) for name in self._program.vectors
        }
        self._ledger = Ledger()
        self._fused = self._build("fused", self._program)
        constants = [self._vectors[name] for name in self._program.vectors]
        self._peers: dict[str, ChainCall] = {
            COMPILED: compile_chain(self._program, dtype, constants),
            EAGER: self._build("eager", self._program),
        }

    def measure(self) -> ChainResult:
        """Everything about it.

        Raises:
            WrongAnswerError: an answer of ours is wrong, or differs from call to call.
        """
        tensors = _Tensors(self._program, self._rows, self._dtype, self._device)
        named = dict(zip(self._program.inputs, tensors.inputs, strict=True)) | self._vectors
        check = ChainCheck(self._program, named, self._dtype)
        turns: dict[str, Call] = {}
        errors: dict[str, float] = {}
        turns[FUSED], errors[FUSED] = self._capture_ours(tensors, check)
        failed: dict[str, PeerResult] = {}
        for name in self._peers:
            found = self._capture_peer(name, tensors, check)
            if isinstance(found, PeerResult):
                failed[name] = found
            else:
                turns[name], errors[name] = found
        if self._chain.shorter is not None:
            fused = self._build("fused", parse_program(self._chain.shorter, {}))
            turns[_SHORTER] = capture_call(partial(fused, tensors.inputs, tensors.outputs))
        traffic = self._traffic()
        turns |= dict(zip(_COPIES, self._copies(traffic[FUSED].bytes_moved), strict=True))
        spreads = take_turns([[call] for call in turns.values()], self._pace)
        times = dict(zip(turns, spreads, strict=True))
        launches = self._count(tensors, errors)
        measured = {name: Measured(times[name], launches[name], errors[name]) for name in errors}
        return ChainResult(
            chain=self._chain,
            dtype=self._dtype,
            rows=self._rows,
            ops=len(self._program.steps),
            traffic=traffic,
            ours=measured[FUSED],
            peers={
                name: failed.get(name) or PeerResult(State.OK, measured=measured[name])
                for name in self._peers
            },
            copies={name: times[name] for name in _COPIES},
            shorter=times.get(_SHORTER),
        )

    def profile(self, result: ChainResult) -> tuple[LaunchCheck, ...]:
        """Run each form that was measured once more, under the profiler.

        Call it when all is measured: what the profiler leaves behind may slow launches down.
        """
        tensors = _Tensors(self._program, self._rows, self._dtype, self._device)
        checks = []
        for form, counted in result.launches.items():
            call = self._call(form)
            call(tensors.inputs, tensors.outputs)
            torch.cuda.synchronize()
            with kernels_run() as seen:
                call(tensors.inputs, tensors.outputs)
            checks.append(LaunchCheck(result.title, form, counted, seen.total()))
        return tuple(checks)

    def _build(self, backend: str, program: Program) -> Elementwise:
        return build_elementwise(
            backend,
            program,
            vectors=self._vectors,
            ledger=self._ledger,
            dtype=self._dtype,
            device=self._device,
            max_rows=self._rows,
            columns=COLUMNS,
        )

    def _call(self, form: str) -> ChainCall:
        return self._fused if form == FUSED else self._peers[form]

    def _capture_ours(self, tensors: _Tensors, check: ChainCheck) -> tuple[Call, float]:
        replay = capture_call(partial(self._fused, tensors.inputs, tensors.outputs))
        title = f"{self._chain.name} {self._dtype}"
        if not is_repeatable(replay, tensors.outputs):
            raise WrongAnswerError(f"{title}: two calls of the fused form gave different bits")
        error = check.error(tensors.outputs)
        if not error <= check.limit:
            raise WrongAnswerError(
                f"{title}: the fused form's error is {error:.1e}, more than {check.limit:.1e}"
            )
        return replay, error

    def _capture_peer(
        self, name: str, tensors: _Tensors, check: ChainCheck
    ) -> tuple[Call, float] | PeerResult:
        try:
            replay = capture_call(partial(self._peers[name], tensors.inputs, tensors.outputs))
        except Exception as error:  # a peer that breaks is a result, not the end of the run
            self._say(f"{name}, {self._chain.name}: {type(error).__name__}: {error}")
            return PeerResult(State.FAILED, type(error).__name__)
        for output in tensors.outputs:
            output.fill_(torch.nan)
        replay()
        lost = check.error(tensors.outputs)
        # Eager rounds after every op, as torch does: there is nothing to hold it to.
        if name != EAGER and not lost <= check.limit:
            return PeerResult(State.WRONG, f"error {lost:.1e}")
        return replay, lost

    def _copies(self, bytes_moved: int) -> list[Call]:
        """Copies that move as many bytes, of values like the inputs'."""
        elements = bytes_moved // 2 // self._dtype.itemsize
        generator = torch.Generator(self._device).manual_seed(2)
        return copy_calls(_normal((elements,), self._dtype, generator))

    def _count(self, tensors: _Tensors, forms: Mapping[str, float]) -> dict[str, int]:
        """Launches of one call: by the ledger, or where there is none by a captured graph."""
        counts = {}
        for form in forms:
            self._ledger.drain()
            call = partial(self._call(form), tensors.inputs, tensors.outputs)
            if form == COMPILED:
                counts[form] = len(captured_kernels(call))
            else:
                call()
                counts[form] = sum(entry.launches for entry in self._ledger.drain())
        return counts

    def _traffic(self) -> dict[str, FormTraffic]:
        found = {}
        for name in (FUSED, EAGER):
            launches = program_traffic(self._program, name, self._rows, COLUMNS, self._dtype)
            moved = sum(launch.bytes_moved for launch in launches)
            found[name] = FormTraffic(passes(launches), moved)
        return found


def _normal(shape: tuple[int, ...], dtype: DType, generator: torch.Generator) -> torch.Tensor:
    made = torch.empty(shape, dtype=dtypes.to_torch(dtype), device=generator.device)
    return made.normal_(generator=generator)
