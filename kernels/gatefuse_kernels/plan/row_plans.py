"""The plans of one MLP on one device, by row count."""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from gatefuse_kernels.plan.algorithm import Plan
from gatefuse_kernels.shapes import MAX_ROWS, check_max_rows


@dataclass(frozen=True, slots=True)
class RowPlans:
    """Classes of row counts and the plan of each.

    Attributes:
        limits: the largest row count of each class, ascending; the last is MAX_ROWS.
        plans: one per class.

    Raises:
        ValueError: the limits do not ascend to MAX_ROWS, or the counts differ.
    """

    limits: tuple[int, ...]
    plans: tuple[Plan, ...]

    def __post_init__(self) -> None:
        if len(self.limits) != len(self.plans) or self.limits[-1:] != (MAX_ROWS,):
            raise ValueError(f"row limits {self.limits} must end at {MAX_ROWS}, one for each plan")
        if self.limits[0] < 1 or list(self.limits) != sorted(set(self.limits)):
            raise ValueError(f"row limits must be positive and ascend, got {self.limits}")

    @classmethod
    def of_one(cls, plan: Plan) -> "RowPlans":
        """The same plan for every row count."""
        return cls((MAX_ROWS,), (plan,))

    def each(self, change: Callable[[int, Plan], Plan]) -> "RowPlans":
        """The same classes, with `change(limit, plan)` for each plan."""
        changed = map(change, self.limits, self.plans)
        return replace(self, plans=tuple(changed))

    def beyond(self, rows: int) -> Iterator[tuple[int, Plan]]:
        """The classes that reach to more than `rows`, each with its limit."""
        classes = zip(self.limits, self.plans, strict=True)
        return (pair for pair in classes if pair[0] > rows)

    def at(self, rows: int) -> Plan:
        """The plan for `rows` in 1..MAX_ROWS."""
        return self.plans[bisect_left(self.limits, rows)]

    def representatives(self, max_rows: int) -> tuple[int, ...]:
        """The largest row count of each class that 1..max_rows meets, ascending.

        Raises:
            ValueError: `max_rows` is out of range.
        """
        check_max_rows(max_rows)
        return (*(limit for limit in self.limits if limit < max_rows), max_rows)
