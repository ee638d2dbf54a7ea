"""What each launch of an elementwise program reads, writes and computes, by backend.

N elements `[rows, C]` in each tensor, e bytes each. Eager is a kernel per step: every intermediate goes out
to memory and comes back. Compiled and fused are one launch: every input in once, every output out once.

    x * 2 + 3                     eager 2 + 2     = 4 passes, fused 2
    silu(g) * u                   eager 2 + 3     = 5 passes, fused 3
    gelu(x) * scale + residual    eager 2 + 2 + 3 = 7 passes, fused 3

A tensor that a step takes twice is read once. Per-column constants `[C]` are read, too, but are no passes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

from gatefuse_kernels.expression import OPERATIONS, Operand, Program
from gatefuse_kernels.expression.types import step_types
from gatefuse_kernels.shapes import DType
from gatefuse_kernels.traffic.kernel import KernelTraffic, Transfer

PROGRAM_BACKENDS = ("eager", "compiled", "fused")

_TRUTH_BYTES = 1
"""An element of what a comparison gives."""


@lru_cache(maxsize=4096)
def program_traffic(
    program: Program, backend: str, rows: int, columns: int, dtype: DType
) -> tuple[KernelTraffic, ...]:
    """The launches of a program in order.

    Args:
        program: from `parse_program`.
        backend: one of PROGRAM_BACKENDS.
        rows: M >= 1.
        columns: C >= 1.
        dtype: of inputs, per-column constants and outputs.

    Raises:
        ValueError: the backend is unknown.
    """
    if backend not in PROGRAM_BACKENDS:
        raise ValueError(f"unknown backend {backend!r}; use one of {', '.join(PROGRAM_BACKENDS)}")
    named = _Named(program, rows, columns, dtype)
    if backend == "eager":
        return tuple(_step_by_step(named))
    return (
        KernelTraffic(
            f"{backend}_elementwise",
            reads=named.reads((*program.inputs, *program.vectors)),
            writes=tuple(named.whole(name) for name in program.outputs),
            flops=sum(named.flops(number) for number in range(len(program.steps))),
        ),
    )


def _step_by_step(named: "_Named") -> Iterator[KernelTraffic]:
    program = named.program
    for number, step in enumerate(program.steps):
        reads = named.reads(step.operands)
        if step.op == "where":
            # torch makes its operands one type by copies; its other ops convert what they load.
            for operand in step.operands[1:]:
                if isinstance(operand, float) or not named.differs(operand, number):
                    continue
                source, copy = named.transfer(operand), named.converted(operand, number)
                yield KernelTraffic("eager_cast", (source,), (copy,), 0)
                reads = tuple(copy if each == source else each for each in reads)
        yield KernelTraffic(
            f"eager_{step.op}", reads, (named.transfer(number),), named.flops(number)
        )
    for name, result in zip(program.outputs, program.results, strict=True):
        if not named.is_written_by_step(name, result):
            yield KernelTraffic("eager_copy", named.reads((result,)), (named.whole(name),), 0)


class _Named:
    """A program with a name and a size for whatever its steps read and write."""

    def __init__(self, program: Program, rows: int, columns: int, dtype: DType) -> None:
        self.program = program
        self._rows = rows
        self._columns = columns
        self._dtype = dtype
        self._itemsize = dtype.itemsize
        self._types = step_types(program, dtype)
        self._is_full = program.full_steps()
        # The first output that a step of whole rows gives in the right type is written by it.
        self._names: dict[int, str] = {}
        for name, result in zip(program.outputs, program.results, strict=True):
            if isinstance(result, int) and self._is_full[result] and self._types[result] is dtype:
                self._names.setdefault(result, name)

    def is_written_by_step(self, name: str, result: Operand) -> bool:
        """Whether the step that computes an output writes it itself."""
        return isinstance(result, int) and self._names.get(result) == name

    def whole(self, name: str) -> Transfer:
        """Of a tensor `[rows, C]` of the program's type."""
        return Transfer(name, self._rows * self._columns * self._itemsize)

    def flops(self, step: int) -> int:
        """Nominal, of a step."""
        elements = (self._rows if self._is_full[step] else 1) * self._columns
        return OPERATIONS[self.program.steps[step].op].flops * elements

    def reads(self, operands: Sequence[Operand]) -> tuple[Transfer, ...]:
        """One of each tensor; numbers ride along as arguments."""
        tensors = (each for each in operands if isinstance(each, str | int))
        return tuple(dict.fromkeys(self.transfer(each) for each in tensors))

    def differs(self, operand: str | int, step: int) -> bool:
        """Whether an operand's type is not that of a step's result."""
        return self._type_of(operand) is not self._types[step]

    def converted(self, operand: str | int, step: int) -> Transfer:
        """Of a copy of an operand in the type of a step's result."""
        kind, result = self._type_of(operand), self._types[step]
        assert kind is not None
        assert result is not None
        read = self.transfer(operand)
        nbytes = read.nbytes // kind.itemsize * result.itemsize
        return replace(read, tensor=f"{read.tensor}_{result}", nbytes=nbytes)

    def _type_of(self, operand: str | int) -> DType | None:
        return self._dtype if isinstance(operand, str) else self._types[operand]

    def transfer(self, operand: str | int) -> Transfer:
        """Of an input, a per-column constant or a step's result."""
        if isinstance(operand, str):
            if operand in self.program.vectors:
                return Transfer(operand, self._columns * self._itemsize, trips=0)
            return self.whole(operand)
        kind = self._types[operand]
        itemsize = _TRUTH_BYTES if kind is None else kind.itemsize
        name = self._names.get(operand, f"t{operand}")
        if self._is_full[operand]:
            return Transfer(name, self._rows * self._columns * itemsize)
        return Transfer(name, self._columns * itemsize, trips=0)
