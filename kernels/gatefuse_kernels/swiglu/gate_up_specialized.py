"""gate_up in which one warp fetches and the others multiply, for many rows on compute capability 9.0.

A program stays for tile after tile. Its last warp keeps the copy engine (TMA) fetching into a ring of
buffers, across the ends of tiles; the others wait for a full buffer, multiply, and hand it back when it
is read. Nothing of one tile's end, its activations and stores, holds up the next one's fetches, and no
warp that multiplies issues a load: at 2048 rows of 4096x14336 on an H200 it takes 688 us where
`swiglu_gate_up_tma` takes 712.

A tile's gate and up weights arrive together, as one box of the two stacked matrices, and are multiplied
by one instruction of twice the width. Columns need not be a power of two, but the sum of a few, each
multiplied by itself: of 6144 columns 96 at a time are one even wave for 132 multiprocessors.

Written in Gluon, Triton's language for what its compiler does not do by itself on Hopper.
"""

import torch
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
)

from gatefuse_kernels.launch.jit import Variant, gluon_kernel
from gatefuse_kernels.launch.tensor_maps import TiledMatrix
from gatefuse_kernels.plan import Overlap, Tile
from gatefuse_kernels.plan.device import DeviceProfile
from gatefuse_kernels.shapes import DType
from gatefuse_kernels.swiglu.overlap import let_down_start
from gatefuse_kernels.swiglu.specialized_warps import fetch, multiply, together
from gatefuse_kernels.swiglu.variants import gate_up_constants
from gatefuse_kernels.tile import MOST_PARTS
from gatefuse_kernels.weights.packed import MlpWeights

_FETCHING_WARPS = gl.constexpr(1)
_FETCHING_REGISTERS = gl.constexpr(24)
"""The fewest that the hardware leaves a warp; the others share the rest."""


@gluon_kernel
def swiglu_gate_up_specialized(
    x: tma.tensor_descriptor,
    weight: tma.tensor_descriptor,
    weight_2: tma.tensor_descriptor,
    weight_3: tma.tensor_descriptor,
    h_ptr: gl.tensor,
    rows: gl.tensor,
    HIDDEN: gl.constexpr,
    INTERMEDIATE: gl.constexpr,
    ACTIVATION: gl.constexpr,
    BLOCK_ROWS: gl.constexpr,
    BLOCK_COLUMNS: gl.constexpr,
    BLOCK_INNER: gl.constexpr,
    PARTS: gl.constexpr,
    GROUP: gl.constexpr,
    STAGES: gl.constexpr,
    STARTS_EARLY: gl.constexpr,
    STARTS_LATE: gl.constexpr,
) -> None:
    """X [rows, HIDDEN], weights [2, INTERMEDIATE, HIDDEN] -> h [rows, INTERMEDIATE].

    The weights are described once for each of PARTS; what is over is not used.
    """
    let_down_start(STARTS_EARLY)
    weights = (weight, weight_2, weight_3)
    x_ring = gl.allocate_shared_memory(x.dtype, [STAGES, BLOCK_ROWS, BLOCK_INNER], x.layout)
    weight_rings = ()
    for part in gl.static_range(len(PARTS)):
        ring = gl.allocate_shared_memory(
            x.dtype, [STAGES, 2, PARTS[part], BLOCK_INNER], weights[part].layout
        )
        weight_rings = together(weight_rings, ring)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=1)
    fence_async_shared()
    gl.warp_specialize(
        [
            (
                multiply,
                (
                    x_ring,
                    weight_rings,
                    full,
                    empty,
                    h_ptr,
                    rows,
                    HIDDEN,
                    INTERMEDIATE,
                    ACTIVATION,
                    BLOCK_ROWS,
                    BLOCK_COLUMNS,
                    BLOCK_INNER,
                    PARTS,
                    GROUP,
                    STAGES,
                    STARTS_LATE,
                ),
            ),
            (
                fetch,
                (
                    x,
                    weights,
                    x_ring,
                    weight_rings,
                    full,
                    empty,
                    rows,
                    HIDDEN,
                    INTERMEDIATE,
                    BLOCK_ROWS,
                    BLOCK_COLUMNS,
                    BLOCK_INNER,
                    PARTS,
                    GROUP,
                    STAGES,
                ),
            ),
        ],
        [_FETCHING_WARPS],
        [_FETCHING_REGISTERS],
    )


class GateUpSpecialized:
    """The launch for one MLP's weights, one specialised tile and overlap.

    Both widths are multiples of 16 bytes.
    """

    def __init__(
        self, weights: MlpWeights, tile: Tile, overlap: Overlap, device: DeviceProfile
    ) -> None:
        """Launch nothing yet; see `GateUpTma`."""
        hidden, intermediate = weights.shape.hidden, weights.shape.intermediate
        self._tile = tile
        self._processors = device.multiprocessors
        self._box = tile.rows, tile.inner
        self._layout = _layout(self._box, weights.dtype)
        stacked = weights.gate_up.view(2, intermediate, hidden)
        boxes = [(2, part, tile.inner) for part in tile.parts]
        described = [TiledMatrix(stacked, box, _layout(box, weights.dtype)) for box in boxes]
        self._weights = (*described, *described[:1] * (MOST_PARTS - len(described)))
        self._variant = Variant(
            swiglu_gate_up_specialized,
            {
                **gate_up_constants(weights, tile, overlap),
                "PARTS": tile.parts,
                "STAGES": tile.stages,
            },
            num_warps=tile.warps,
        )

    def __call__(self, x: torch.Tensor, h: torch.Tensor) -> None:
        """Compute h of x; see `GateUp`."""
        rows, intermediate = h.shape
        programs = min(self._processors, self._tile.grid(rows, intermediate))
        tokens = TiledMatrix(x, self._box, self._layout)
        self._variant.launch(programs, tokens, *self._weights, h, rows)


def _layout(box: tuple[int, ...], dtype: DType) -> gl.NVMMASharedLayout:
    """How the copy engine leaves a box in shared memory: as the warpgroups' products read it."""
    element = gl.bfloat16 if dtype is DType.BF16 else gl.float16
    return gl.NVMMASharedLayout.get_default_for(list(box), element)
