"""A launch's predicted time and what it is spent on."""

from collections.abc import Sequence

from gatefuse_kernels.explain.results import Bound, Kernel
from gatefuse_kernels.plan.cost import LAUNCH_S, launch_s
from gatefuse_kernels.traffic import KernelTraffic


def kernels_of(
    launches: Sequence[KernelTraffic],
    bandwidth_bytes_per_s: float,
    flops_per_s: float,
    padding: Sequence[float] | None = None,
) -> tuple[Kernel, ...]:
    """Each launch with its time under two roofs.

    Args:
        launches: of one form, in order.
        bandwidth_bytes_per_s: of device memory.
        flops_per_s: of the form's arithmetic.
        padding: by how much masked rows multiply the arithmetic of each; by default not at all.
    """
    factors = padding or (1.0,) * len(launches)
    return tuple(
        Kernel(
            launch,
            launch_s(launch, bandwidth_bytes_per_s, flops_per_s, factor),
            _bound(launch.bytes_moved / bandwidth_bytes_per_s, launch.flops * factor / flops_per_s),
        )
        for launch, factor in zip(launches, factors, strict=True)
    )


def _bound(memory_s: float, arithmetic_s: float) -> Bound:
    if max(memory_s, arithmetic_s) < LAUNCH_S:
        return Bound.LAUNCH
    return Bound.MEMORY if memory_s >= arithmetic_s else Bound.ARITHMETIC
