"""Collects steps: equal ones once, what no output needs not at all. No torch."""

from collections.abc import Sequence

from gatefuse_kernels.expression.operations import OPERATIONS
from gatefuse_kernels.expression.program import Operand, Step


class StepGraph:
    """The steps so far; a step is known by its number."""

    def __init__(self) -> None:
        """Start with none."""
        self.steps: list[Step] = []
        self._numbers: dict[tuple[str, tuple[object, ...]], int] = {}

    def add(self, op: str, operands: tuple[Operand, ...]) -> int:
        """The number of this step, which is an earlier one if that computed the same."""
        key = self._key(op, operands)
        if key not in self._numbers:
            self._numbers[key] = len(self.steps)
            self.steps.append(Step(op, operands))
        return self._numbers[key]

    def needed_for(
        self, results: Sequence[Operand]
    ) -> tuple[tuple[Step, ...], tuple[Operand, ...]]:
        """The steps that `results` need, numbered anew, and the results in those numbers."""
        needed: set[int] = set()
        pending = [each for each in results if isinstance(each, int)]
        while pending:
            number = pending.pop()
            if number not in needed:
                needed.add(number)
                pending += [each for each in self.steps[number].operands if isinstance(each, int)]
        renumbered = {old: new for new, old in enumerate(sorted(needed))}

        def rename(operands: Sequence[Operand]) -> tuple[Operand, ...]:
            return tuple(renumbered[each] if isinstance(each, int) else each for each in operands)

        kept = [self.steps[number] for number in sorted(needed)]
        return tuple(Step(step.op, rename(step.operands)) for step in kept), rename(results)

    def _key(self, op: str, operands: tuple[Operand, ...]) -> tuple[str, tuple[object, ...]]:
        # repr tells 0.0 from -0.0, and 1.0 from step 1.
        keys = [repr(each) for each in operands]
        return op, tuple(sorted(keys) if OPERATIONS[op].commutes else keys)
