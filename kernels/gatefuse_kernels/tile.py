"""How one GEMM launch is cut into programs, and what a program needs of a multiprocessor."""

from dataclasses import dataclass

MAX_GRID = 2**31 - 1
"""Programs on grid axis 0; the launcher multiplies the axes in int32."""

LANES_PER_WARP = 32

STREAMED_ROWS = 2
"""Tokens that CUDA cores can multiply in the time in which the weights arrive."""

_MMA_ROWS = 16
"""The fewest tokens of a tile for the matrix units."""

_MMA_COLUMNS, _MMA_INNER = 16, 16
"""The fewest of both that a product of the matrix units takes."""

_LOAD_ELEMENTS = 8
"""Elements of a streamed tile's 128-bit loads, whose products are added up at once."""

BOX = 256
"""The most elements of a box, along each side, that the copy engine (TMA) fetches."""

_POWERS = ("rows", "columns", "inner", "warps")

_MOST = {
    "rows": 256,
    "columns": 256,
    "inner": 4096,
    "warps": 32,
    "stages": 256,
    "group": 64,
    "splits": 1024,
}
"""What any tile has use for. A block has 1024 threads, and Triton's tensors 2**20 elements."""

MOST_PARTS = 3
"""Powers of two that a specialised tile's columns are the sum of: each has products of its own."""

_PARTS = (16, 128)
"""The fewest and the most columns of a part: gate and up together are one instruction's width, 256 at most."""

_MOST_SPECIALIZED_COLUMNS = 208
"""With more the sums, two to a column in each lane, leave too few registers."""

_ROWS_OF_A_WARP = 16
"""Of a specialised tile: four warps multiply 64 rows with one instruction."""

_LEAST_RING = 2
"""Stages of a specialised tile: a buffer is handed back while the next one is multiplied."""

_FOLDING_BYTES = 2048
"""Shared memory in which a streamed tile's warps add up what each has, beside the sums themselves."""

_RING_BARRIER_BYTES = 16
"""Of each stage of a specialised tile: one barrier for full, one for empty."""

_BARRIER_BYTES = 256
"""Shared memory of the barriers that Blackwell's MMA and TMA copies signal: 8 bytes a stage and kind."""


@dataclass(frozen=True, slots=True)
class Tile:
    """How one GEMM launch is cut.

    Attributes:
        rows: tokens per program.
        columns: output features (weight rows) per program.
        inner: elements of the contracted dimension per pipeline step.
        warps: warps per program that multiply.
        stages: depth of the software pipeline.
        swapped: weight rows on the MMA's M side; for few tokens.
        group: row tiles that share a weight tile while it is in L2.
        splits: programs that share one output tile, each with its part of the contracted
            dimension; 1 except where `down` has too few tiles for the multiprocessors.
        descriptors: operands come through TMA descriptors; needs compute capability 9.
        share_tail: the tiles of the last wave and of the one before are shared out evenly, see
            `shares`; gate_up through descriptors only, and swapped: the sums of the other order
            leave too few registers to add parts up.
        specialized: one warp more fetches for those that multiply, and programs stay for tile after
            tile; gate_up through descriptors only, on compute capability 9.0, 64 or 128 rows. Its
            columns may be the sum of a few powers of two.

    Raises:
        ValueError: a size is not a positive power of two where the compiler wants one, below 1, or
            beyond what a kernel can do.
    """

    rows: int
    columns: int
    inner: int
    warps: int
    stages: int
    swapped: bool
    group: int = 8
    splits: int = 1
    descriptors: bool = False
    share_tail: bool = False
    specialized: bool = False

    def __post_init__(self) -> None:
        for name in ("rows", "inner", "warps") if self.specialized else _POWERS:
            size = getattr(self, name)
            if size < 1 or size & (size - 1):
                raise ValueError(f"a tile's {name} must be a power of two, got {size}")
        for name in ("stages", "group", "splits"):
            if getattr(self, name) < 1:
                raise ValueError(f"a tile's {name} must be at least 1, got {getattr(self, name)}")
        for name, most in _MOST.items():
            if getattr(self, name) > most:
                raise ValueError(
                    f"a tile's {name} must be at most {most}, got {getattr(self, name)}"
                )
        if STREAMED_ROWS < self.rows < _MMA_ROWS:
            raise ValueError(f"no kernel has tiles of {self.rows} rows")
        if self.is_streamed and self.inner < _LOAD_ELEMENTS:
            raise ValueError(
                f"a streamed tile's inner must be at least {_LOAD_ELEMENTS}, got {self.inner}"
            )
        if not self.is_streamed and (self.columns < _MMA_COLUMNS or self.inner < _MMA_INNER):
            raise ValueError(
                f"a tile for the matrix units has at least {_MMA_COLUMNS} columns and "
                f"{_MMA_INNER} inner, got {self.columns} and {self.inner}"
            )
        if self.descriptors and self.inner > BOX:
            raise ValueError(
                f"a tile through descriptors has an inner of at most {BOX}, got {self.inner}"
            )
        if self.is_streamed and (self.stages, self.splits, self.descriptors) != (1, 1, False):
            raise ValueError("a streamed tile has one stage, whole sums and no descriptors")
        if self.share_tail and not (self.descriptors and self.swapped):
            raise ValueError("only a swapped tile through descriptors is shared out")
        if self.specialized:
            self._check_specialized()

    def _check_specialized(self) -> None:
        if not self.descriptors or self.swapped or self.splits > 1:
            raise ValueError(
                "a specialized tile comes through descriptors, is not swapped and has whole sums"
            )
        fewest, most = _PARTS
        fit = len(self.parts) <= MOST_PARTS and self.parts[-1] >= fewest and self.parts[0] <= most
        if not fit or self.columns > _MOST_SPECIALIZED_COLUMNS:
            raise ValueError(
                f"a specialized tile's columns must be at most {_MOST_SPECIALIZED_COLUMNS}, and the sum "
                f"of at most {MOST_PARTS} powers of two from {fewest} to {most}, got {self.columns}"
            )
        if self.warps not in (4, 8) or self.rows != self.warps * _ROWS_OF_A_WARP:
            raise ValueError(
                f"a specialized tile has 64 rows and 4 warps, or 128 and 8, "
                f"got {self.rows} and {self.warps}"
            )
        if self.stages < _LEAST_RING:
            raise ValueError(
                f"a specialized tile has at least {_LEAST_RING} stages, got {self.stages}"
            )

    @property
    def parts(self) -> tuple[int, ...]:
        """The powers of two that `columns` is the sum of, from the largest on."""
        bits = reversed(range(self.columns.bit_length()))
        return tuple(1 << bit for bit in bits if self.columns >> bit & 1)

    @property
    def is_streamed(self) -> bool:
        """So few rows that CUDA cores multiply them while the weights stream through registers."""
        return self.rows <= STREAMED_ROWS

    def grid(self, rows: int, columns: int) -> int:
        """Programs needed for an output `[rows, columns]`.

        Raises:
            ValueError: more than a launch can have.
        """
        programs = self.programs(rows, columns)
        if programs > MAX_GRID:
            raise ValueError(f"an output of {rows} x {columns} needs {programs} programs")
        return programs

    def programs(self, rows: int, columns: int) -> int:
        """Programs of an output `[rows, columns]`, however many."""
        return -(-rows // self.rows) * -(-columns // self.columns) * self.splits

    def shared_bytes(self, products: int, itemsize: int) -> int:
        """Shared memory of one program, an upper bound: every stage holds its operands' tiles.

        Args:
            products: weight matrices multiplied in one pass: 2 for gate and up, 1 for down.
            itemsize: bytes per element.
        """
        operands = (self.rows + products * self.columns) * self.inner * itemsize * self.stages
        if self.is_streamed:
            # The operands never leave the registers.
            return products * self.rows * self.columns * self.warps * 4 + _FOLDING_BYTES
        if self.specialized:
            # While one tile is stored the next one's operands arrive: the room is beside theirs.
            scratch = self.rows * self.parts[0] * itemsize
            return operands + scratch + _RING_BARRIER_BYTES * self.stages + _BARRIER_BYTES
        # After the loop the same memory turns one float32 result into the order of its stores.
        return max(operands, self.rows * self.columns * 4) + _BARRIER_BYTES

    def sums_per_lane(self, products: int) -> int:
        """float32 sums that each lane holds: registers, of which a lane has 255."""
        width = self.columns * self.inner if self.is_streamed else self.columns
        return self.rows * width * products // (self.warps * LANES_PER_WARP)
