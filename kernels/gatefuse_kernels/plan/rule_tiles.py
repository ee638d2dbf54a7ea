"""The tiles that rules choose from, by what the device's MMA reads its operands from.

Few rows stream weights, and what counts is bytes in flight: pipelines are deep, and weight rows
take the MMA's M side ("swapped"). Of some 600 variants timed on an H200 (bf16, CUDA-graph replays,
weights cold) the Hopper tiles were within 4 % of the fastest, and none spills. The others were
compiled, not timed.
"""

from dataclasses import dataclass

from gatefuse_kernels.plan.device import DeviceProfile
from gatefuse_kernels.shapes import MAX_ROWS, DType
from gatefuse_kernels.tile import Tile


@dataclass(frozen=True, slots=True)
class LaunchTiles:
    """The tiles of one launch.

    Attributes:
        products: weight matrices multiplied in one pass over the tokens.
        classes: the largest row count of each class, and its tiles from wide to narrow.
    """

    products: int
    classes: tuple[tuple[int, tuple[Tile, ...]], ...]

    def at(self, rows: int) -> tuple[Tile, ...]:
        """The tiles of the class of `rows`, from wide to narrow."""
        return next(tiles for limit, tiles in self.classes if rows <= limit)


UNALIGNED = Tile(32, 32, 16, 4, 2, False)
"""For rows that do not start on 16 bytes: loaded by element, each load its own register."""

_GATE_UP, _DOWN = 2, 1

_FROM_SHARED = (
    LaunchTiles(
        _GATE_UP,
        (
            (16, (Tile(16, 64, 128, 4, 5, True),)),
            (32, (Tile(32, 64, 128, 4, 4, True),)),
            (64, (Tile(64, 64, 64, 4, 3, True), Tile(64, 64, 128, 4, 4, True))),
            (128, (Tile(128, 128, 64, 8, 4, False), Tile(128, 64, 64, 8, 5, False))),
            (MAX_ROWS, (Tile(128, 128, 64, 8, 4, False),)),
        ),
    ),
    LaunchTiles(
        _DOWN,
        (
            (16, (Tile(16, 32, 256, 4, 6, True), Tile(16, 16, 512, 4, 4, True))),
            (32, (Tile(16, 64, 256, 4, 5, True),)),
            (64, (Tile(32, 64, 128, 4, 6, True),)),
            (128, (Tile(64, 64, 128, 4, 6, True), Tile(64, 32, 128, 4, 6, False))),
            (256, (Tile(64, 128, 128, 4, 4, False), Tile(64, 64, 128, 4, 5, True))),
            (MAX_ROWS, (Tile(128, 128, 64, 8, 4, False),)),
        ),
    ),
)
_FROM_REGISTERS = (
    LaunchTiles(
        _GATE_UP,
        (
            (16, (Tile(16, 64, 128, 4, 4, True),)),
            (32, (Tile(32, 64, 64, 4, 4, True),)),
            (64, (Tile(64, 64, 64, 4, 4, True),)),
            (MAX_ROWS, (Tile(128, 64, 32, 8, 4, False),)),
        ),
    ),
    LaunchTiles(
        _DOWN,
        (
            (16, (Tile(16, 32, 128, 4, 6, True),)),
            (32, (Tile(32, 32, 128, 4, 5, True),)),
            (64, (Tile(64, 32, 128, 4, 4, False),)),
            (MAX_ROWS, (Tile(128, 64, 64, 4, 4, False),)),
        ),
    ),
)
_WITHOUT_TENSOR_CORES = tuple(
    LaunchTiles(
        products,
        (
            (16, (Tile(16, 32, 32, 4, 3, True),)),
            (MAX_ROWS, (Tile(64, 64, 16, 8, 3, False),)),
        ),
    )
    for products in (_GATE_UP, _DOWN)
)


def tiles_for(dtype: DType, device: DeviceProfile) -> tuple[LaunchTiles, LaunchTiles]:
    """The tiles of gate_up and of down."""
    if dtype is DType.FP32:
        # float32 means float32 ("ieee"): small tiles whose sums and operands stay in registers.
        gate_up, down = _WITHOUT_TENSOR_CORES
    elif device.operands_from_shared:
        gate_up, down = _FROM_SHARED
    else:
        # Operands pass through registers on their way to the MMA: larger tiles would spill.
        gate_up, down = _FROM_REGISTERS
    return gate_up, down
