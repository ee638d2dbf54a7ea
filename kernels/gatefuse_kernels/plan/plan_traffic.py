"""The launches of a plan, with what each must move and compute."""

from gatefuse_kernels import traffic
from gatefuse_kernels.plan.algorithm import Algorithm, Plan
from gatefuse_kernels.shapes import MlpShape
from gatefuse_kernels.traffic import KernelTraffic


def plan_traffic(
    plan: Plan, shape: MlpShape, rows: int, itemsize: int
) -> tuple[KernelTraffic, ...]:
    """The plan's launches in order; helpers that a library adds are not known here.

    Args:
        plan: of any algorithm.
        shape: the MLP's widths.
        rows: M >= 1.
        itemsize: bytes per element.
    """
    if plan.algorithm is Algorithm.TWO_LAUNCH:
        return traffic.fused_mlp(shape, rows, itemsize)
    if plan.algorithm is Algorithm.LIBRARY:
        return traffic.library_mlp(shape, rows, itemsize)
    if plan.algorithm is Algorithm.FUSED_GATE_UP:
        gate_up, _ = traffic.fused_mlp(shape, rows, itemsize)
        *_, down = traffic.library_mlp(shape, rows, itemsize)
        return gate_up, down
    assert plan.down is not None
    return (traffic.textbook_mlp(shape, rows, itemsize, plan.down),)
