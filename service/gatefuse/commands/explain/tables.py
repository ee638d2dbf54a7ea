"""An explanation as tables of text. Pure: what a cell says, and not how it is drawn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gatefuse_kernels.explain.quantities import digits, scaled, seconds
from gatefuse_kernels.explain.results import Explanation, Form, Kernel, Point
from gatefuse_kernels.traffic import Transfer

_NOTHING = "-"


@dataclass(frozen=True, slots=True)
class Table:
    """A title, a header and rows of cells; the first `left` columns are words."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int = 1


def headline(explanation: Explanation) -> str:
    """What is explained, and for which device."""
    roofs = explanation.roofs
    flops = roofs.product_flops if explanation.is_mlp else roofs.elementwise_flops
    return (
        f"{explanation.subject}, {explanation.dtype}, on {roofs.name}: "
        f"{scaled(roofs.bandwidth_bytes_per_s, 'B/s')}, {scaled(flops, 'FLOP/s')}, "
        f"ridge at {digits(roofs.ridge(flops))} FLOPs a byte"
    )


def point_title(explanation: Explanation, point: Point) -> str:
    """The size of a point."""
    if explanation.is_mlp:
        return f"{point.rows} {'row' if point.rows == 1 else 'rows'}"
    title = f"{scaled(point.elements, '')} {'element' if point.elements == 1 else 'elements'}"
    if point.columns == 1:
        return title
    rows = f"{point.rows} {'row' if point.rows == 1 else 'rows'}"
    return f"{title}: {rows} of {point.columns} columns"


def tables_of(point: Point) -> Iterator[Table]:
    """The backends side by side, their kernels, and what the compiled ones take."""
    yield _backends(point)
    yield _kernels(point)
    if any(form.compiled for form in point.forms):
        yield _resources(point)


def _backends(point: Point) -> Table:
    is_measured = any(form.measured for form in point.forms)
    header = (
        *("backend", "launches", "passes", "bytes", "FLOPs", "FLOP/B", "intermediate"),
        *("predicted", "bound by"),
        *(("measured",) if is_measured else ()),
    )
    return Table("backends", header, tuple(_backend(form, is_measured) for form in point.forms))


def _backend(form: Form, is_measured: bool) -> tuple[str, ...]:
    cells = (
        form.backend,
        str(form.launches),
        str(form.passes),
        scaled(form.bytes_moved, "B"),
        scaled(form.flops, ""),
        digits(form.intensity),
        scaled(form.peak_intermediate_bytes, "B"),
        seconds(form.predicted_s),
        form.bound.value,
    )
    if not is_measured:
        return cells
    measured = form.measured
    return (*cells, seconds(measured.median_us * 1e-6) if measured else _NOTHING)


def _kernels(point: Point) -> Table:
    header = (
        *("backend", "kernel", "reads", "writes", "passes"),
        *("bytes", "FLOPs", "FLOP/B", "predicted", "bound by"),
    )
    rows = tuple(
        _kernel(form.backend if number == 0 else "", kernel)
        for form in point.forms
        for number, kernel in enumerate(form.kernels)
    )
    return Table("kernels", header, rows, left=4)


def _kernel(backend: str, kernel: Kernel) -> tuple[str, ...]:
    traffic = kernel.traffic
    return (
        backend,
        traffic.kernel,
        " ".join(map(_transfer, traffic.reads)),
        " ".join(map(_transfer, traffic.writes)),
        str(traffic.passes),
        scaled(traffic.bytes_moved, "B"),
        scaled(traffic.flops, ""),
        digits(traffic.intensity),
        seconds(kernel.predicted_s),
        kernel.bound.value,
    )


def _transfer(transfer: Transfer) -> str:
    if transfer.trips == 0:
        return f"{transfer.tensor}[C]"
    return transfer.tensor if transfer.trips == 1 else f"{transfer.trips}×{transfer.tensor}"


def _resources(point: Point) -> Table:
    header = (
        *("backend", "compiled kernel", "registers", "spilled", "shared", "warps"),
        *("programs/SM", "limited by", "warps held"),
    )
    rows = tuple(
        (
            form.backend,
            each.kernel,
            str(each.registers),
            scaled(each.stack_bytes, "B"),
            scaled(each.shared_bytes, "B"),
            str(each.warps),
            str(each.occupancy.programs),
            each.occupancy.limited_by,
            f"{each.occupancy.share:.0%}",
        )
        for form in point.forms
        for each in form.compiled
    )
    return Table("what the compiled kernels allow", header, rows, left=2)
