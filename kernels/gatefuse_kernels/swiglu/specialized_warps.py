"""What the warps of a specialized program do: one fetches, the others multiply. In Gluon.

They meet at two barriers for each buffer of the ring: `full`, which the copies complete, and `empty`, at
which those that multiply arrive once they have read it. One thread arrives for all of them: the compiler
has them wait for each other first (`test_compiled_kernels.py` looks). Products of one step stay in flight
while the next one's buffer is waited for, and so a buffer is handed back a step later: with a ring of one
buffer, both sides would wait for ever.
"""

from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from gatefuse_kernels.launch.jit import gluon_device
from gatefuse_kernels.swiglu.overlap import let_down_start
from gatefuse_kernels.swiglu.tiles import activate, tile_of_program


@gluon_device
def together(several: gl.tuple, one: gl.base_value) -> gl.tuple:
    """Both in one tuple. Triton knows no starred expressions."""
    return several + (one,)  # noqa: RUF005


@gluon_device
def fetch(
    x: tma.tensor_descriptor,
    weights: gl.tuple,
    x_ring: gl.shared_memory_descriptor,
    weight_rings: gl.tuple,
    full: gl.shared_memory_descriptor,
    empty: gl.shared_memory_descriptor,
    rows: gl.tensor,
    HIDDEN: gl.constexpr,
    INTERMEDIATE: gl.constexpr,
    BLOCK_ROWS: gl.constexpr,
    BLOCK_COLUMNS: gl.constexpr,
    BLOCK_INNER: gl.constexpr,
    PARTS: gl.constexpr,
    GROUP: gl.constexpr,
    STAGES: gl.constexpr,
) -> None:
    """What the fetching warp does: fill buffer after buffer, each as soon as it was read."""
    ITEM_BYTES: gl.constexpr = x.dtype.primitive_bitwidth // 8
    tiles = gl.cdiv(rows, BLOCK_ROWS) * gl.cdiv(INTERMEDIATE, BLOCK_COLUMNS)
    step = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        row_tile, column_tile = tile_of_program(
            tile, rows, INTERMEDIATE, BLOCK_ROWS, BLOCK_COLUMNS, GROUP
        )
        row = (row_tile * BLOCK_ROWS).to(gl.int32)
        column = (column_tile * BLOCK_COLUMNS).to(gl.int32)
        for inner in range(0, HIDDEN, BLOCK_INNER):
            stage = step % STAGES
            # A barrier that nobody has used yet takes the phase before its first for over: at the
            # start all buffers count as read.
            mbarrier.wait(empty.index(stage), (step // STAGES & 1) ^ 1)
            filled = full.index(stage)
            mbarrier.expect(filled, (BLOCK_ROWS + 2 * BLOCK_COLUMNS) * BLOCK_INNER * ITEM_BYTES)
            tma.async_copy_global_to_shared(x, [row, inner], filled, x_ring.index(stage))
            first = column
            for part in gl.static_range(len(PARTS)):
                tma.async_copy_global_to_shared(
                    weights[part], [0, first, inner], filled, weight_rings[part].index(stage)
                )
                first += PARTS[part]
            step += 1


@gluon_device
def _zeros(BLOCK_ROWS: gl.constexpr, COLUMNS: gl.constexpr) -> gl.tensor:
    """Float32 sums of one part of a tile, gate's columns before up's; 16 rows to a warp."""
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[gl.num_warps(), 1], instr_shape=[16, 2 * COLUMNS, 16]
    )
    return gl.zeros([BLOCK_ROWS, 2 * COLUMNS], gl.float32, LAYOUT)


@gluon_device
def _settled(sums: gl.tuple, PENDING: gl.constexpr) -> gl.tuple:
    """The sums once no more than so many of the products in flight are left."""
    settled = warpgroup_mma_wait(PENDING, deps=sums)
    if len(sums) == 1:
        return (settled,)
    else:
        return settled


@gluon_device
def _store(
    total: gl.tensor,
    h_ptr: gl.tensor,
    first_row: gl.tensor,
    first_column: gl.tensor,
    rows: gl.tensor,
    INTERMEDIATE: gl.constexpr,
    ACTIVATION: gl.constexpr,
    BLOCK_ROWS: gl.constexpr,
    COLUMNS: gl.constexpr,
) -> None:
    """Store h of one part of a tile."""
    gate, up = gl.split(total.reshape([BLOCK_ROWS, 2, COLUMNS]).permute((0, 2, 1)))
    h = (activate(gate, ACTIVATION) * up).to(h_ptr.dtype.element_ty)
    # 128 bits to a thread, as many threads to a row as it has of them.
    ACROSS: gl.constexpr = COLUMNS // 8
    LAYOUT: gl.constexpr = gl.BlockedLayout(
        [1, 8], [32 // ACROSS, ACROSS], [gl.num_warps(), 1], [1, 0]
    )
    row = gl.arange(0, BLOCK_ROWS, gl.SliceLayout(1, LAYOUT))
    column = gl.arange(0, COLUMNS, gl.SliceLayout(0, LAYOUT))
    exists = (row < rows - first_row)[:, None] & (column < INTERMEDIATE - first_column)[None, :]
    h_part = h_ptr + first_row * INTERMEDIATE + first_column
    offset = row[:, None] * INTERMEDIATE + column[None, :]
    gl.store(h_part + offset, gl.convert_layout(h, LAYOUT), mask=exists)


@gluon_device
def multiply(
    x_ring: gl.shared_memory_descriptor,
    weight_rings: gl.tuple,
    full: gl.shared_memory_descriptor,
    empty: gl.shared_memory_descriptor,
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
    STARTS_LATE: gl.constexpr,
) -> None:
    """What all other warps do: multiply what arrives, hand the buffers back, store h."""
    COUNT: gl.constexpr = len(PARTS)
    tiles = gl.cdiv(rows, BLOCK_ROWS) * gl.cdiv(INTERMEDIATE, BLOCK_COLUMNS)
    step = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        sums = ()
        for part in gl.static_range(COUNT):
            sums = together(sums, _zeros(BLOCK_ROWS, PARTS[part]))
        for inner in range(0, HIDDEN, BLOCK_INNER):
            stage = step % STAGES
            mbarrier.wait(full.index(stage), step // STAGES & 1)
            after = ()
            for part in gl.static_range(COUNT):
                weight = weight_rings[part].index(stage).reshape([2 * PARTS[part], BLOCK_INNER])
                total = warpgroup_mma(
                    x_ring.index(stage), weight.permute((1, 0)), sums[part], is_async=True
                )
                after = together(after, total)
            # All but this step's products are done, so the buffer of the step before has been read.
            sums = _settled(after, COUNT)
            mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), pred=inner > 0)
            step += 1
        sums = _settled(sums, 0)
        mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES))
        if tile + gl.num_programs(0) >= tiles:
            let_down_start(STARTS_LATE)
        row_tile, column_tile = tile_of_program(
            tile, rows, INTERMEDIATE, BLOCK_ROWS, BLOCK_COLUMNS, GROUP
        )
        first_column = column_tile * BLOCK_COLUMNS
        for part in gl.static_range(COUNT):
            _store(
                sums[part],
                h_ptr,
                row_tile * BLOCK_ROWS,
                first_column,
                rows,
                INTERMEDIATE,
                ACTIVATION,
                BLOCK_ROWS,
                PARTS[part],
            )
            first_column += PARTS[part]
