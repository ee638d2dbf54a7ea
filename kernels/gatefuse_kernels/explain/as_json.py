"""An explanation as JSON."""

from dataclasses import asdict
from typing import Any

from gatefuse_kernels.explain.results import Explanation, Form, Kernel, Point
from gatefuse_kernels.explain.roofs import Roofs
from gatefuse_kernels.traffic import Transfer


def json_of(explanation: Explanation) -> dict[str, Any]:
    """All of it, numbers unrounded and in base units."""
    return {
        "subject": explanation.subject,
        "kind": "mlp" if explanation.is_mlp else "elementwise",
        "dtype": explanation.dtype.value,
        "device": _roofs(explanation.roofs),
        "turning": explanation.turning,
        "points": [_point(point) for point in explanation.points],
    }


def _roofs(roofs: Roofs) -> dict[str, Any]:
    return {
        "name": roofs.name,
        "bandwidth_bytes_per_s": roofs.bandwidth_bytes_per_s,
        "product_flops_per_s": roofs.product_flops,
        "elementwise_flops_per_s": roofs.elementwise_flops,
    }


def _point(point: Point) -> dict[str, Any]:
    return {
        "rows": point.rows,
        "columns": point.columns,
        "advice": list(point.advice),
        "backends": [_form(form) for form in point.forms],
    }


def _form(form: Form) -> dict[str, Any]:
    return {
        "backend": form.backend,
        "description": form.description,
        "launches": form.launches,
        "passes": form.passes,
        "bytes": form.bytes_moved,
        "flops": form.flops,
        "flops_per_byte": form.intensity,
        "peak_intermediate_bytes": form.peak_intermediate_bytes,
        "predicted_s": form.predicted_s,
        "bound": form.bound.value,
        "measured": asdict(form.measured) if form.measured else None,
        "kernels": [_kernel(kernel) for kernel in form.kernels],
        "compiled": [
            {
                **asdict(each),
                "programs_per_multiprocessor": each.occupancy.programs,
                "limited_by": each.occupancy.limited_by,
                "warps_share": each.occupancy.share,
            }
            for each in form.compiled
        ],
    }


def _kernel(kernel: Kernel) -> dict[str, Any]:
    traffic = kernel.traffic
    return {
        "kernel": traffic.kernel,
        "reads": [_transfer(each) for each in traffic.reads],
        "writes": [_transfer(each) for each in traffic.writes],
        "passes": traffic.passes,
        "bytes": traffic.bytes_moved,
        "flops": traffic.flops,
        "flops_per_byte": traffic.intensity,
        "predicted_s": kernel.predicted_s,
        "bound": kernel.bound.value,
    }


def _transfer(transfer: Transfer) -> dict[str, Any]:
    return {"tensor": transfer.tensor, "bytes": transfer.nbytes, "trips": transfer.trips}
