"""What each launch of an MLP reads, writes and computes, by backend.

M rows (padding included), H hidden, I intermediate, e bytes per element. The bytes are a lower
bound: each operand crosses DRAM once. Tiles that re-read what left L2 move more; weights that
stay in L2 between calls move less. The parts of split sums, which
live in L2 between the programs that add them up, are not modelled, a library's or ours.

    fused     gate_up reads (MH + 2HI)e, writes MIe; down reads (MI + IH)e, writes MHe
    eager     adds gate and up written and read back, and the activation's own round trip
    textbook  reads gate and up once for each tile of the output: see `textbook_mlp`

In passes over whole tensors, as the tutorials count them, weights and rows alike: eager is 3 for
each of its products (two operands in, one result out), 2 for the activation and 3 for the multiply,
14 in five launches; ours is 4 and 3; the tutorial's promise is 5 in one launch, x, gate, up and
down in and out out: see `ideal_mlp`.

Tensors: x and out `[M, H]`; the weights gate, up and down; g and u `[M, I]`, the products with gate
and up; h `[M, I]`, the gated rows. Eager and compiled work in place, so their h is in g's memory.
"""

from dataclasses import dataclass
from functools import lru_cache

from gatefuse_kernels.shapes import MlpShape
from gatefuse_kernels.tile import Tile
from gatefuse_kernels.traffic.kernel import KernelTraffic, Transfer

ACTIVATION_FLOPS = 4
"""Nominal FLOPs per activated element (exp, add, divide, multiply); GEMMs dominate by far."""


@dataclass(frozen=True, slots=True)
class _Tensors:
    """One trip of each tensor of an MLP."""

    shape: MlpShape
    rows: int
    itemsize: int

    def wide(self, *names: str) -> tuple[Transfer, ...]:
        """`[M, H]`."""
        return self._each(names, self.rows * self.shape.hidden)

    def inner(self, *names: str) -> tuple[Transfer, ...]:
        """`[M, I]`."""
        return self._each(names, self.rows * self.shape.intermediate)

    def weights(self, *names: str) -> tuple[Transfer, ...]:
        """`[I, H]` or `[H, I]`."""
        return self._each(names, self.shape.hidden * self.shape.intermediate)

    def _each(self, names: tuple[str, ...], elements: int) -> tuple[Transfer, ...]:
        return tuple(Transfer(name, elements * self.itemsize) for name in names)

    @property
    def product_flops(self) -> int:
        """Of one product with one weight matrix."""
        return 2 * self.rows * self.shape.hidden * self.shape.intermediate

    @property
    def gate_flops(self) -> int:
        """Of the activation and the multiply."""
        return (ACTIVATION_FLOPS + 1) * self.rows * self.shape.intermediate


@lru_cache(maxsize=4096)
def fused_mlp(shape: MlpShape, rows: int, itemsize: int) -> tuple[KernelTraffic, ...]:
    """The two launches of the fused MLP."""
    of = _Tensors(shape, rows, itemsize)
    return (
        KernelTraffic(
            "swiglu_gate_up",
            reads=(*of.wide("x"), *of.weights("gate", "up")),
            writes=of.inner("h"),
            flops=2 * of.product_flops + of.gate_flops,
        ),
        _down("swiglu_down", of),
    )


@lru_cache(maxsize=4096)
def eager_mlp(shape: MlpShape, rows: int, itemsize: int) -> tuple[KernelTraffic, ...]:
    """The five launches of the unfused MLP: gate, up, activation, multiply, down."""
    of = _Tensors(shape, rows, itemsize)
    elements = rows * shape.intermediate
    return (
        _product("eager_gate", of, "gate", "g"),
        _product("eager_up", of, "up", "u"),
        KernelTraffic(
            "eager_activation", of.inner("g"), of.inner("g"), ACTIVATION_FLOPS * elements
        ),
        KernelTraffic("eager_multiply", of.inner("g", "u"), of.inner("g"), elements),
        _down("eager_down", of, "g"),
    )


@lru_cache(maxsize=4096)
def compiled_mlp(shape: MlpShape, rows: int, itemsize: int) -> tuple[KernelTraffic, ...]:
    """What Inductor makes of the MLP: three library GEMMs and one fused act(gate) * up."""
    of = _Tensors(shape, rows, itemsize)
    return (
        _product("compiled_gate", of, "gate", "g"),
        _product("compiled_up", of, "up", "u"),
        KernelTraffic("compiled_act_mul", of.inner("g", "u"), of.inner("g"), of.gate_flops),
        _down("compiled_down", of, "g"),
    )


@lru_cache(maxsize=4096)
def swiglu_gate(rows: int, intermediate: int, itemsize: int) -> KernelTraffic:
    """The gate alone: `[rows, I]` gate and up in, h out, one launch."""
    of = _Tensors(MlpShape(1, intermediate), rows, itemsize)
    return KernelTraffic("swiglu_gate", of.inner("g", "u"), of.inner("h"), of.gate_flops)


@lru_cache(maxsize=4096)
def library_mlp(shape: MlpShape, rows: int, itemsize: int) -> tuple[KernelTraffic, ...]:
    """The three launches of a library's products around the gate: merged gate and up, gate, down."""
    of = _Tensors(shape, rows, itemsize)
    return (
        KernelTraffic(
            "library_gate_up",
            reads=(*of.wide("x"), *of.weights("gate", "up")),
            writes=of.inner("g", "u"),
            flops=2 * of.product_flops,
        ),
        swiglu_gate(rows, shape.intermediate, itemsize),
        _down("library_down", of),
    )


@lru_cache(maxsize=4096)
def textbook_mlp(shape: MlpShape, rows: int, itemsize: int, tile: Tile) -> KernelTraffic:
    """The one launch of the textbook kernel: what each of its programs needs, once.

    Here reading again is the algorithm and no accident of caches, so this alone is no lower bound
    on DRAM's bytes: programs that run side by side share some of them in L2. With R column tiles and
    T row tiles x is read R times, gate and up R * T times and down T times.
    """
    row_tiles, column_tiles = -(-rows // tile.rows), -(-shape.hidden // tile.columns)
    return _single_launch(
        "swiglu_textbook", _Tensors(shape, rows, itemsize), row_tiles, column_tiles
    )


@lru_cache(maxsize=4096)
def ideal_mlp(shape: MlpShape, rows: int, itemsize: int) -> KernelTraffic:
    """The tutorial's promise for its single kernel: everything in once, out out once, five passes.

    No launch can keep it where a row's h or out is more than one program can hold: that would take
    one column tile of H columns.
    """
    return _single_launch("ideal", _Tensors(shape, rows, itemsize), 1, 1)


def pad_rows(rows: int, columns: int, itemsize: int) -> KernelTraffic:
    """The launch that zeroes `rows` pad rows of a static buffer."""
    return KernelTraffic("pad_rows", (), (Transfer("padding", rows * columns * itemsize),), 0)


def _single_launch(kernel: str, of: _Tensors, row_tiles: int, column_tiles: int) -> KernelTraffic:
    return KernelTraffic(
        kernel,
        reads=(
            *_times(column_tiles, of.wide("x")),
            *_times(row_tiles * column_tiles, of.weights("gate", "up")),
            *_times(row_tiles, of.weights("down")),
        ),
        writes=of.wide("out"),
        flops=column_tiles * (2 * of.product_flops + of.gate_flops) + of.product_flops,
    )


def _times(trips: int, once: tuple[Transfer, ...]) -> tuple[Transfer, ...]:
    return tuple(Transfer(each.tensor, trips * each.nbytes, trips) for each in once)


def _product(kernel: str, of: _Tensors, weight: str, result: str) -> KernelTraffic:
    reads = (*of.wide("x"), *of.weights(weight))
    return KernelTraffic(kernel, reads, of.inner(result), of.product_flops)


def _down(kernel: str, of: _Tensors, h: str = "h") -> KernelTraffic:
    reads = (*of.inner(h), *of.weights("down"))
    return KernelTraffic(kernel, reads, of.wide("out"), of.product_flops)
