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
    for name, rows in (("gate", gate_rows), ("up", up_rows)):
        if not (_is_same(out_rows, rows) or _is_apart(out_rows, rows)):
            raise ValueError(f"out overlaps {name}: it must be {name} itself or lie apart from it")
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


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two matrices of one shape are the same elements in the same order."""
    is_one_row = one.shape[0] <= 1
    return one.data_ptr() == other.data_ptr() and (is_one_row or one.stride(0) == other.stride(0))


def _is_apart(out: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two matrices of one shape and dtype have no byte in common; the rows of out have none.

    Rows of one may lie between rows of the other, as with halves of a merged matrix.
    """
    rows, itemsize = out.shape[0], out.element_size()
    width, step, other_step = (
        count * itemsize for count in (out.shape[1], out.stride(0), other.stride(0))
    )
    ahead = other.data_ptr() - out.data_ptr()
    last = rows - 1
    if out.numel() == 0 or ahead >= last * step + width or -ahead >= last * other_step + width:
        return True
    if rows == 1:
        return False
    if step == other_step:
        # Row i of other starts in or before row i + distance of out, or in the gap after it.
        distance, past = divmod(ahead, step)
        is_in_row = past < width and -rows < distance < rows
        is_in_next = past + width > step and -rows < distance + 1 < rows
        return not (is_in_row or is_in_next)
    start = torch.arange(rows) * step - ahead
    before = (start // max(other_step, 1)).clamp(0, last)
    after = (before + 1).clamp(max=last)
    nearest = torch.minimum((start - before * other_step).abs(), (start - after * other_step).abs())
    return bool((nearest >= width).all())


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
