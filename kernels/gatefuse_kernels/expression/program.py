"""What a parsed elementwise expression is: steps in single-assignment form. No torch."""

from dataclasses import dataclass

Operand = float | str | int
"""A constant (float), the name of an input or vector (str), or the number of an earlier step (int)."""


@dataclass(frozen=True, slots=True)
class Step:
    """One elementwise operation on constants, inputs, vectors and the results of earlier steps.

    Attributes:
        op: a name of `operations.OPERATIONS`.
        operands: as many as the operation takes.
    """

    op: str
    operands: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """A parsed expression. Equal computations are one step, and every step is needed.

    Attributes:
        text: the source, on one line, statements separated by "; ".
        inputs: names of the tensor inputs `[rows, C]`, in order of first use.
        vectors: names of the per-column constants `[C]` it uses, in order of first use.
        outputs: names of the outputs `[rows, C]`.
        steps: in order of execution.
        results: what each output is.
    """

    text: str
    inputs: tuple[str, ...]
    vectors: tuple[str, ...]
    outputs: tuple[str, ...]
    steps: tuple[Step, ...]
    results: tuple[Operand, ...]

    def full_steps(self) -> tuple[bool, ...]:
        """For each step, whether its result has a value for every element; else one for a column."""
        full: list[bool] = []
        for step in self.steps:
            full.append(
                any(
                    full[each] if isinstance(each, int) else each in self.inputs
                    for each in step.operands
                )
            )
        return tuple(full)
