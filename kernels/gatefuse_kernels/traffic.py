"""The one place for byte and FLOP formulas: what each launch reads, writes and computes.

M rows (padding included), H hidden, I intermediate, e bytes per element. The bytes are a lower
bound: each operand crosses DRAM once. Tiles that re-read what left L2 move more; weights that
stay in L2 between calls move less. The parts of split sums, which
live in L2 between the programs that add them up, are not modelled, a library's or ours.

    fused     gate_up reads (MH + 2HI)e, writes MIe; down reads (MI + IH)e, writes MHe
    eager     adds gate and up written and read back, and the activation's own round trip
    textbook  reads gate and up once for each tile of the output: see `textbook_mlp`
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from gatefuse_kernels.shapes import MlpShape

if TYPE_CHECKING:
    from gatefuse_kernels.plan import Tile

ACTIVATION_FLOPS = 4
"""Nominal FLOPs per activated element (exp, add, divide, multiply); GEMMs dominate by far."""


@dataclass(frozen=True, slots=True)
class KernelTraffic:
    """One launch: its name, the bytes it must move and its floating-point operations."""

    kernel: str
    read_bytes: int
    written_bytes: int
    flops: int

    @property
    def bytes_moved(self) -> int:
        """Bytes read plus bytes written."""
        return self.read_bytes + self.written_bytes


@lru_cache(maxsize=4096)
def fused_mlp(shape: MlpShape, rows: int, itemsize: int) -> tuple[KernelTraffic, ...]:
    """The two launches of the fused MLP."""
    hidden, intermediate = shape.hidden, shape.intermediate
    return (
        KernelTraffic(
            "swiglu_gate_up",
            read_bytes=(rows * hidden + 2 * hidden * intermediate) * itemsize,
            written_bytes=rows * intermediate * itemsize,
            flops=4 * rows * hidden * intermediate + (ACTIVATION_FLOPS + 1) * rows * intermediate,
        ),
        _matmul("swiglu_down", rows, intermediate, hidden, itemsize),
    )


@lru_cache(maxsize=4096)
def eager_mlp(shape: MlpShape, rows: int, itemsize: int) -> tuple[KernelTraffic, ...]:
    """The five launches of the unfused MLP: gate, up, activation, multiply, down."""
    hidden, intermediate = shape.hidden, shape.intermediate
    h_bytes = rows * intermediate * itemsize
    return (
        _matmul("eager_gate", rows, hidden, intermediate, itemsize),
        _matmul("eager_up", rows, hidden, intermediate, itemsize),
        KernelTraffic("eager_activation", h_bytes, h_bytes, ACTIVATION_FLOPS * rows * intermediate),
        KernelTraffic("eager_multiply", 2 * h_bytes, h_bytes, rows * intermediate),
        _matmul("eager_down", rows, intermediate, hidden, itemsize),
    )


@lru_cache(maxsize=4096)
def compiled_mlp(shape: MlpShape, rows: int, itemsize: int) -> tuple[KernelTraffic, ...]:
    """What Inductor makes of the MLP: three library GEMMs and one fused act(gate) * up."""
    hidden, intermediate = shape.hidden, shape.intermediate
    h_bytes = rows * intermediate * itemsize
    return (
        _matmul("compiled_gate", rows, hidden, intermediate, itemsize),
        _matmul("compiled_up", rows, hidden, intermediate, itemsize),
        KernelTraffic(
            "compiled_act_mul", 2 * h_bytes, h_bytes, (ACTIVATION_FLOPS + 1) * rows * intermediate
        ),
        _matmul("compiled_down", rows, intermediate, hidden, itemsize),
    )


@lru_cache(maxsize=4096)
def swiglu_gate(rows: int, intermediate: int, itemsize: int) -> KernelTraffic:
    """The gate alone: `[rows, I]` gate and up in, h out, one launch."""
    h_bytes = rows * intermediate * itemsize
    flops = (ACTIVATION_FLOPS + 1) * rows * intermediate
    return KernelTraffic("swiglu_gate", 2 * h_bytes, h_bytes, flops)


@lru_cache(maxsize=4096)
def library_mlp(shape: MlpShape, rows: int, itemsize: int) -> tuple[KernelTraffic, ...]:
    """The three launches of a library's products around the gate: merged gate and up, gate, down."""
    hidden, intermediate = shape.hidden, shape.intermediate
    return (
        _matmul("library_gate_up", rows, hidden, 2 * intermediate, itemsize),
        swiglu_gate(rows, intermediate, itemsize),
        _matmul("library_down", rows, intermediate, hidden, itemsize),
    )


@lru_cache(maxsize=4096)
def textbook_mlp(shape: MlpShape, rows: int, itemsize: int, tile: "Tile") -> KernelTraffic:
    """The one launch of the textbook kernel: what each of its programs needs, once.

    Here reading again is the algorithm and no accident of caches, so this alone is no lower bound
    on DRAM's bytes: programs that run side by side share some of them in L2.
    """
    hidden, intermediate = shape.hidden, shape.intermediate
    row_tiles, column_tiles = -(-rows // tile.rows), -(-hidden // tile.columns)
    x_elements = column_tiles * rows * hidden
    gate_up_elements = row_tiles * column_tiles * 2 * hidden * intermediate
    gate_flops = (4 * hidden + ACTIVATION_FLOPS + 1) * rows * intermediate
    return KernelTraffic(
        "swiglu_textbook",
        read_bytes=(x_elements + gate_up_elements + row_tiles * hidden * intermediate) * itemsize,
        written_bytes=rows * hidden * itemsize,
        flops=column_tiles * gate_flops + 2 * rows * hidden * intermediate,
    )


def pad_rows(rows: int, columns: int, itemsize: int) -> KernelTraffic:
    """The launch that zeroes `rows` pad rows of a static buffer."""
    return KernelTraffic("pad_rows", 0, rows * columns * itemsize, 0)


@lru_cache(maxsize=4096)
def elementwise_op(name: str, elements: int, itemsize: int, tensors_read: int) -> KernelTraffic:
    """One unfused elementwise op over `elements`, reading that many equal-sized tensors."""
    size = elements * itemsize
    return KernelTraffic(f"eager_{name}", tensors_read * size, size, elements)


def helper_launch(traffic: KernelTraffic) -> KernelTraffic:
    """A library's extra launch for an op (a split-K reduction): counted, no modelled bytes."""
    return replace(
        traffic, kernel=f"{traffic.kernel}_helper", read_bytes=0, written_bytes=0, flops=0
    )


def _matmul(name: str, rows: int, inner: int, columns: int, itemsize: int) -> KernelTraffic:
    return KernelTraffic(
        name,
        read_bytes=(rows * inner + inner * columns) * itemsize,
        written_bytes=rows * columns * itemsize,
        flops=2 * rows * inner * columns,
    )
