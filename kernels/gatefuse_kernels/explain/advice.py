"""Whether to fuse, and why, in words. Every figure comes from the same formulas as the tables."""

from collections.abc import Sequence

from gatefuse_kernels import traffic
from gatefuse_kernels.explain.quantities import digits, scaled, seconds
from gatefuse_kernels.explain.results import Bound, Form
from gatefuse_kernels.explain.roofs import Roofs
from gatefuse_kernels.expression import Program
from gatefuse_kernels.plan import Tile
from gatefuse_kernels.plan.cost import LAUNCH_S
from gatefuse_kernels.plan.textbook import textbook_tile
from gatefuse_kernels.shapes import DType, MlpShape

_WEIGHTS = ("gate", "up", "down")

TUTORIAL_COLUMNS = 64
"""BLOCK_N with which the tutorial shows its kernel."""


def mlp_turning(shape: MlpShape, dtype: DType, roofs: Roofs) -> str:
    """Where an MLP stops being bound by memory."""
    rows = roofs.turning_rows(dtype)
    return (
        f"It turns at {rows} rows: with fewer the bytes of the weights take longer than the "
        f"arithmetic, with more the arithmetic does ({scaled(roofs.product_flops, 'FLOP/s')} over "
        f"{scaled(roofs.bandwidth_bytes_per_s, 'B/s')}, {dtype.itemsize} bytes a weight, at any width)."
    )


def mlp_advice(
    shape: MlpShape, rows: int, dtype: DType, roofs: Roofs, forms: Sequence[Form]
) -> tuple[str, ...]:
    """What to do at one row count."""
    eager, fused, textbook, ideal = (
        next(form for form in forms if form.backend == name)
        for name in ("eager", "fused", "textbook", "ideal")
    )
    if fused.bound is Bound.ARITHMETIC:
        fuse = _fuse_if_as_fast(eager, fused)
    elif fused.bound is Bound.LAUNCH:
        fuse = (
            f"Fuse gate, up and activation: at this size launches are what costs, and {eager.launches} "
            f"become {fused.launches}: {_times(eager, fused)}."
        )
    else:
        fuse = _fuse_the_gate(eager, fused, roofs)
    if textbook.predicted_s < fused.predicted_s:
        one = (
            f"One launch for all may pay here: what the single kernel computes again takes less than a "
            f"second launch ({seconds(textbook.predicted_s)}); measure it as backend textbook."
        )
    else:
        one = _not_into_one(shape, rows, dtype, textbook, ideal)
    return (fuse, one)


def program_turning(program: Program, dtype: DType, roofs: Roofs) -> str:
    """Where a chain stops being bound by memory."""
    (fused,) = traffic.program_traffic(program, "fused", 1, 1, dtype)
    # A vector is one element here, and next to nothing at any real size.
    trips = sum(each.nbytes for each in (*fused.reads, *fused.writes) if each.trips)
    elements = round(LAUNCH_S * roofs.bandwidth_bytes_per_s / trips)
    room = roofs.ridge(roofs.elementwise_flops) * trips
    return (
        f"It turns at about {scaled(elements, '')} elements: with fewer, starting a launch takes longer "
        f"than its bytes, and fusing saves launches rather than traffic. Arithmetic takes over at "
        f"{digits(room)} FLOPs an element; this has {fused.flops}."
    )


def program_advice(
    elements: int, dtype: DType, roofs: Roofs, forms: Sequence[Form]
) -> tuple[str, ...]:
    """What to do with a chain of elementwise steps."""
    eager, fused = (
        next(form for form in forms if form.backend == name) for name in ("eager", "fused")
    )
    trip_bytes = elements * dtype.itemsize
    trip = (
        f"One trip of {scaled(elements, '')} elements is {scaled(trip_bytes, 'B')} and takes "
        f"{seconds(trip_bytes / roofs.bandwidth_bytes_per_s)}, to read or to write; an intermediate "
        "costs two, out and back."
    )
    if eager.launches == fused.launches:
        return (trip, "Nothing to fuse: it is one kernel already.")
    saved = f"{eager.passes} trips become {fused.passes}, {eager.launches} launches become 1"
    if fused.bound is Bound.ARITHMETIC:
        return (
            trip,
            f"Fuse: {saved}; {_times(eager, fused)}, and no more, for then arithmetic is the limit.",
        )
    if fused.bound is Bound.LAUNCH:
        return (
            trip,
            f"Fuse: {saved}; at this size launches are what costs: {_times(eager, fused)}.",
        )
    return (
        trip,
        f"Fuse: the chain is bound by memory, and {saved}: {_times(eager, fused)}, and "
        f"{scaled(eager.peak_intermediate_bytes, 'B')} of intermediates are never allocated.",
    )


def _fuse_the_gate(eager: Form, fused: Form, roofs: Roofs) -> str:
    saved = eager.bytes_moved - fused.bytes_moved
    reads = (each for kernel in fused.kernels for each in kernel.traffic.reads)
    weights = sum(each.nbytes for each in reads if each.tensor in _WEIGHTS)
    return (
        f"Fuse gate, up and activation: bound by memory ({digits(fused.intensity)} FLOPs a byte, below "
        f"{digits(roofs.ridge(roofs.product_flops))}). {eager.passes} passes become {fused.passes} and "
        f"{eager.launches} launches {fused.launches}; {scaled(saved, 'B')} fewer, "
        f"{saved / eager.bytes_moved:.1%} of all; {weights / fused.bytes_moved:.0%} of what is left are "
        f"weights, which no fusion saves. "
        f"{_times(eager, fused)}."
    )


def _fuse_if_as_fast(eager: Form, fused: Form) -> str:
    """A fused kernel that loses more arithmetic than the trips cost is a loss."""
    others_s = sum(kernel.predicted_s for kernel in fused.kernels[1:])
    allowed_s = eager.predicted_s - others_s
    least = fused.kernels[0].predicted_s / allowed_s
    return (
        f"Bound by arithmetic ({digits(fused.intensity)} FLOPs a byte): fusing the gate saves at most "
        f"{1 - fused.predicted_s / eager.predicted_s:.1%} of the time, so it pays only where the fused "
        f"kernel keeps more than {least:.1%} of the library's arithmetic; `gatefuse tune` measures it."
    )


def _not_into_one(shape: MlpShape, rows: int, dtype: DType, textbook: Form, ideal: Form) -> str:
    like = textbook_tile(shape, rows, dtype)
    tutorial = Tile(like.rows, TUTORIAL_COLUMNS, like.inner, like.warps, like.stages, like.swapped)
    launch = traffic.textbook_mlp(shape, rows, dtype.itemsize, tutorial)
    return (
        f"Do not fuse down as well: the single kernel's {ideal.passes} passes are {textbook.passes} in "
        f"truth, for each program computes gate and up again for its columns. That is "
        f"{digits(textbook.flops / ideal.flops)} × the FLOPs and {scaled(textbook.bytes_moved, 'B')} "
        f"instead of {scaled(ideal.bytes_moved, 'B')}; with the tutorial's BLOCK_N of "
        f"{TUTORIAL_COLUMNS}, {digits(launch.flops / ideal.flops)} × and {scaled(launch.bytes_moved, 'B')}."
    )


def _times(eager: Form, fused: Form) -> str:
    return (
        f"{seconds(eager.predicted_s)} become {seconds(fused.predicted_s)} "
        f"({eager.predicted_s / fused.predicted_s:.2f} ×)"
    )
