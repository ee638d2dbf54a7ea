"""`gated` for use without the service: the gate of products that something else computed."""

import torch

from gatefuse_kernels import dtypes
from gatefuse_kernels.reference import activate
from gatefuse_kernels.shapes import MAX_ROWS, Activation, Rounding, check_rows


def gated_call(
    gate: torch.Tensor,
    up: torch.Tensor,
    activation: Activation,
    rounding: Rounding,
    out: torch.Tensor | None,
) -> torch.Tensor:
    """See `gatefuse_kernels.gated`."""
    if out is None:
        out = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    dtypes.from_torch(gate.dtype)
    for name, other in (("up", up), ("out", out)):
        if other.shape != gate.shape:
            raise ValueError(f"{name} is {list(other.shape)} but gate {list(gate.shape)}")
        if (other.dtype, other.device) != (gate.dtype, gate.device):
            raise ValueError(
                f"{name} must be {gate.dtype} on {gate.device}, got {other.dtype} on {other.device}"
            )
    gate_rows, up_rows, out_rows = _rows("gate", gate), _rows("up", up), _rows("out", out)
    check_rows(out_rows.shape[0], MAX_ROWS)
    if out_rows.shape[0] > 1 and out_rows.stride(0) < out_rows.shape[1]:
        raise ValueError("rows of out overlap")
    if gate.device.type == "cuda":
        # Imported here so that a machine without a GPU never loads Triton.
        from gatefuse_kernels.swiglu.gate import launch_gate

        # Triton launches on the current device whatever device its tensors are on.
        with torch.cuda.device(gate.device):
            launch_gate(gate_rows, up_rows, out_rows, activation, rounding)
    else:
        _gate_on_cpu(gate_rows, up_rows, out_rows, activation, rounding)
    return out


def _rows(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """`[M, I]`, a view with dense rows: the leading dimensions joined into one, nothing copied."""
    if tensor.dim() == 0:
        raise ValueError(f"{name} must be [..., I], got a scalar")
    if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise ValueError(
            f"the last dimension of {name} must be dense, its stride is {tensor.stride(-1)}"
        )
    rows = tensor.numel() // max(tensor.shape[-1], 1)
    try:
        return tensor.view(rows, tensor.shape[-1])
    except RuntimeError as error:
        raise ValueError(
            f"the rows of {name} must be a fixed distance apart, its strides are {tensor.stride()}"
        ) from error


def _gate_on_cpu(
    gate: torch.Tensor,
    up: torch.Tensor,
    out: torch.Tensor,
    activation: Activation,
    rounding: Rounding,
) -> None:
    if rounding is Rounding.EAGER_EXACT:
        torch.mul(activate(gate, activation), up, out=out)
    else:
        out.copy_(activate(gate.float(), activation).mul_(up.float()))
