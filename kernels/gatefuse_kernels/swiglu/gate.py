"""The gate alone: h = act(gate) * up, for products that a library computed. One launch, nothing copied.

A memory-bound kernel: 128 bits an access, every load of a program in flight before the first use.
silu in bf16 takes 19 instructions an element as compiled for sm_90, which is under half of an
H200's issue slots at its copy bandwidth. `eager_exact` takes 40, because it computes exp and the
division as torch's kernel does: with one wrong unit in the last place of float32 some fp16 value
rounds the other way. That is nearly all issue slots, so it may fall short of the bandwidth.
"""

from typing import NamedTuple

import torch
import triton.language as tl
from triton.language.extra import libdevice

from gatefuse_kernels.launch.jit import device, kernel_of_any_arguments
from gatefuse_kernels.plan import MAX_GRID
from gatefuse_kernels.shapes import Activation, Rounding
from gatefuse_kernels.swiglu.tiles import activate

_VECTOR_BYTES = 16

_ELEMENTS = 2048
"""Elements a program: two (16-bit) or four (float32) accesses a thread and operand."""

_WARPS = 4

_NARROW = 256
"""Columns a program where rows are strided and shorter than `_ELEMENTS`: a warp's 16-byte accesses."""


@device
def exp(value: tl.tensor) -> tl.tensor:
    """The exp of torch's CUDA kernels; `tl.exp` is an approximation. Not in Triton's interpreter."""
    return libdevice.exp(value)


@device
def tanh(value: tl.tensor) -> tl.tensor:
    """The tanh of torch's CUDA kernels. Not in Triton's interpreter."""
    return libdevice.tanh(value)


@device
def activate_as_torch(gate: tl.tensor, ACTIVATION: tl.constexpr) -> tl.tensor:
    """The activation of a float32 tile, with the operations of torch's CUDA kernels in their order."""
    if ACTIVATION == "silu":
        return tl.div_rn(gate, 1.0 + exp(-gate))
    elif ACTIVATION == "gelu_tanh":
        inner = 0.7978845608028654 * tl.fma(gate * gate * gate, 0.044715, gate)
        return 0.5 * gate * (1.0 + tanh(inner))
    else:
        return activate(gate, ACTIVATION)


@device
def gated(
    gate: tl.tensor, up: tl.tensor, ACTIVATION: tl.constexpr, EAGER_EXACT: tl.constexpr
) -> tl.tensor:
    """act(gate) * up, rounded to gate's type once or twice."""
    if EAGER_EXACT:
        activated = activate_as_torch(gate.to(tl.float32), ACTIVATION)
        activated = activated.to(gate.dtype).to(tl.float32)
    else:
        activated = activate(gate.to(tl.float32), ACTIVATION)
    return (activated * up.to(tl.float32)).to(gate.dtype)


@kernel_of_any_arguments
def swiglu_gate(
    gate_ptr: tl.tensor,
    up_ptr: tl.tensor,
    out_ptr: tl.tensor,
    rows: tl.int64,
    width: tl.int64,
    gate_stride: tl.int64,
    up_stride: tl.int64,
    out_stride: tl.int64,
    column_tiles: tl.int32,
    ACTIVATION: tl.constexpr,
    EAGER_EXACT: tl.constexpr,
    VECTOR: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    HAS_TAIL: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
) -> None:
    """Gate and up [rows, width] -> out [rows, width], each row dense.

    Every start of a row is a multiple of `VECTOR` elements, `ALIGNMENT` bytes. The last
    `width % VECTOR` columns are a masked access of their own, so that the bulk's mask is constant
    over each vector and the bulk stays vectorised. Row and tile offsets are 64-bit.
    """
    program = tl.program_id(0)
    row = (program // column_tiles).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    first = (program % column_tiles).to(tl.int64) * BLOCK_COLUMNS
    column = tl.arange(0, BLOCK_COLUMNS)
    left = tl.minimum(width // VECTOR - first // VECTOR, BLOCK_COLUMNS // VECTOR)
    is_row = (row < rows)[:, None]
    inside = is_row & (column < left.to(tl.int32) * VECTOR)[None, :]

    gate_row = (gate_ptr + row * gate_stride)[:, None]
    up_row = (up_ptr + row * up_stride)[:, None]
    out_row = (out_ptr + row * out_stride)[:, None]
    gate = tl.load(tl.multiple_of(gate_row + first + column[None, :], [1, ALIGNMENT]), mask=inside)
    up = tl.load(tl.multiple_of(up_row + first + column[None, :], [1, ALIGNMENT]), mask=inside)
    out = tl.multiple_of(out_row + first + column[None, :], [1, ALIGNMENT])
    tl.store(out, gated(gate, up, ACTIVATION, EAGER_EXACT), mask=inside)

    if HAS_TAIL and first + BLOCK_COLUMNS >= width:
        rest = width // VECTOR * VECTOR + tl.arange(0, VECTOR)[None, :]
        is_tail = is_row & (rest < width)
        gate_tail = tl.load(gate_row + rest, mask=is_tail)
        up_tail = tl.load(up_row + rest, mask=is_tail)
        tl.store(out_row + rest, gated(gate_tail, up_tail, ACTIVATION, EAGER_EXACT), mask=is_tail)


def launch_gate(
    gate: torch.Tensor,
    up: torch.Tensor,
    out: torch.Tensor,
    activation: Activation,
    rounding: Rounding = Rounding.FP32_EPILOGUE,
) -> None:
    """Launch on the current stream and device; nothing for an empty matrix.

    Accesses are as wide as the addresses of all rows allow: 16 bytes for matrices as torch
    allocates them whatever their width, and for halves of a merged `[M, 2I]` if I is a multiple of
    16 bytes; narrower where a row starts elsewhere.

    Args:
        gate: `[M, I]`, rows dense (last stride 1) and any distance apart.
        up: likewise, of gate's dtype and device; may lie between gate's rows.
        out: likewise, fully overwritten; may be gate or up itself.
        activation: of the gate.
        rounding: see `Rounding`.

    Raises:
        ValueError: more elements than a launch can cover (some 2^42).
    """
    if out.numel() == 0:
        return
    cut = _cut(gate, up, out)
    swiglu_gate[(cut.programs,)](
        gate,
        up,
        out,
        cut.rows,
        cut.width,
        gate.stride(0),
        up.stride(0),
        out.stride(0),
        cut.column_tiles,
        ACTIVATION=activation.value,
        EAGER_EXACT=rounding is Rounding.EAGER_EXACT,
        VECTOR=cut.vector,
        ALIGNMENT=cut.vector * gate.element_size(),
        HAS_TAIL=cut.width % cut.vector != 0,
        BLOCK_ROWS=cut.block_rows,
        BLOCK_COLUMNS=_ELEMENTS // cut.block_rows,
        num_warps=_WARPS,
    )


class _Cut(NamedTuple):
    """How the matrices are cut into programs."""

    rows: int
    width: int
    vector: int
    block_rows: int
    column_tiles: int
    programs: int


def _cut(*matrices: torch.Tensor) -> _Cut:
    rows, width = matrices[0].shape
    itemsize = matrices[0].element_size()
    addresses = _VECTOR_BYTES
    if all(matrix.is_contiguous() for matrix in matrices):
        # One long row: its tail is the only one.
        rows, width = 1, rows * width
    elif rows > 1:
        for matrix in matrices:
            addresses |= matrix.stride(0) * itemsize
    for matrix in matrices:
        addresses |= matrix.data_ptr()
    vector = (addresses & -addresses) // itemsize
    block_rows = 1 if rows == 1 or width >= _ELEMENTS else _ELEMENTS // _NARROW
    column_tiles = -(-width // (_ELEMENTS // block_rows))
    programs = -(-rows // block_rows) * column_tiles
    if programs > MAX_GRID:
        raise ValueError(f"a gate of {rows} x {width} needs {programs} programs")
    return _Cut(rows, width, vector, block_rows, column_tiles, programs)
