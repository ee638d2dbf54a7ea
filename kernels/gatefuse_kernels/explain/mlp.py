"""The ways to compute an MLP, each launch with its predicted time."""

from collections.abc import Sequence

from gatefuse_kernels import traffic
from gatefuse_kernels.explain.advice import mlp_advice, mlp_turning
from gatefuse_kernels.explain.launches import kernels_of
from gatefuse_kernels.explain.results import Explanation, Form, Point
from gatefuse_kernels.explain.roofs import Roofs
from gatefuse_kernels.plan import Algorithm, Plan, choose, plan_traffic
from gatefuse_kernels.plan.cost import paddings
from gatefuse_kernels.plan.textbook import textbook_tile
from gatefuse_kernels.shapes import DType, MlpShape
from gatefuse_kernels.traffic import KernelTraffic

_FUSED = {
    Algorithm.TWO_LAUNCH: "gate, up and activation in one launch, then down: only h reaches memory",
    Algorithm.FUSED_GATE_UP: "gate, up and activation in one launch, then the library's down",
    Algorithm.LIBRARY: "the library's merged gate and up, the fused gate, the library's down",
}


def explain_mlp(shape: MlpShape, rows: Sequence[int], dtype: DType, roofs: Roofs) -> Explanation:
    """Explain an MLP at each row count.

    Args:
        shape: H and I.
        rows: M of each point, >= 1.
        dtype: of weights and rows.
        roofs: of the device; with a profile, fused is its plans' launches.
    """
    return Explanation(
        subject=f"MLP {shape}",
        is_mlp=True,
        dtype=dtype,
        roofs=roofs,
        points=tuple(_point(shape, count, dtype, roofs) for count in rows),
        turning=mlp_turning(shape, dtype, roofs),
    )


def fused_plan(shape: MlpShape, rows: int, dtype: DType, roofs: Roofs) -> Plan | None:
    """The plan of a known device."""
    return choose(shape, rows, dtype, roofs.profile) if roofs.profile else None


def _point(shape: MlpShape, rows: int, dtype: DType, roofs: Roofs) -> Point:
    itemsize = dtype.itemsize
    forms = (
        _form(
            "eager",
            "a torch op each: gate, up, activation, multiply, down",
            traffic.eager_mlp(shape, rows, itemsize),
            roofs,
        ),
        _form(
            "compiled",
            "torch.compile: three library products and one kernel for the gate",
            traffic.compiled_mlp(shape, rows, itemsize),
            roofs,
        ),
        _fused(shape, rows, dtype, roofs),
        _textbook(shape, rows, dtype, roofs),
        _form(
            "ideal",
            "what the tutorial's single kernel promises: everything read once, out written once",
            (traffic.ideal_mlp(shape, rows, itemsize),),
            roofs,
        ),
    )
    return Point(rows, shape.hidden, forms, mlp_advice(shape, rows, dtype, roofs, forms))


def _fused(shape: MlpShape, rows: int, dtype: DType, roofs: Roofs) -> Form:
    plan = fused_plan(shape, rows, dtype, roofs)
    if plan is None:
        launches = traffic.fused_mlp(shape, rows, dtype.itemsize)
        return _form("fused", _FUSED[Algorithm.TWO_LAUNCH], launches, roofs)
    launches = plan_traffic(plan, shape, rows, dtype.itemsize)
    return _form("fused", _FUSED[plan.algorithm], launches, roofs, paddings(plan, rows))


def _textbook(shape: MlpShape, rows: int, dtype: DType, roofs: Roofs) -> Form:
    tile = textbook_tile(shape, rows, dtype)
    launch = traffic.textbook_mlp(shape, rows, dtype.itemsize, tile)
    times = -(-shape.hidden // tile.columns)
    padding = -(-rows // tile.rows) * tile.rows / rows
    return _form(
        "textbook",
        f"the tutorial's single kernel with {tile.columns} columns a program: gate and up "
        f"{times} times over",
        (launch,),
        roofs,
        (padding,),
    )


def _form(
    backend: str,
    description: str,
    launches: tuple[KernelTraffic, ...],
    roofs: Roofs,
    padding: tuple[float, ...] | None = None,
) -> Form:
    return Form(
        backend,
        description,
        kernels_of(launches, roofs.bandwidth_bytes_per_s, roofs.product_flops, padding),
        traffic.peak_intermediate_bytes(launches),
    )
