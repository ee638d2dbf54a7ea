"""What is compiled: every kernel, every shipped tile with each type it serves, and what edges change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from gatefuse_kernels import plan
from gatefuse_kernels.plan import DeviceProfile, Overlap, Tile
from gatefuse_kernels.plan.fitting import DOWN_PRODUCTS, GATE_UP_PRODUCTS
from gatefuse_kernels.plan.textbook import textbook_tile
from gatefuse_kernels.shapes import Activation, DType, MlpShape, Rounding

LLAMA_8B = MlpShape(4096, 14336)
TINY_LLAMA = MlpShape(256, 688)
ODD = MlpShape(4097, 14335)

_SPECIALIZED = (
    Tile(128, 128, 64, 8, 4, False, descriptors=True, specialized=True),
    Tile(64, 112, 128, 4, 3, False, descriptors=True, specialized=True),
)

CAPABILITIES = (80, 86, 89, 90, 100, 120)
"""Of the known devices; 86 and 120 for what differs by device alone."""


@dataclass(frozen=True)
class Job:
    """One launch of one kernel.

    Attributes:
        kernel: a key of `launches.LAUNCHES`.
        capability: 90 for sm_90.
        dtype: of every matrix.
        shape: the MLP's widths.
        activation: the gate's.
        tile: of the kernels that have one.
        overlap: of gate_up and down.
        rounding: of the elementwise gate.
        merged: the gate's operands are halves of one matrix.
    """

    kernel: str
    capability: int
    dtype: DType
    shape: MlpShape = LLAMA_8B
    activation: Activation = Activation.SILU
    tile: Tile | None = None
    overlap: Overlap = Overlap.NONE
    rounding: Rounding = Rounding.FP32_EPILOGUE
    merged: bool = False

    @property
    def is_aligned(self) -> bool:
        """Whether every row starts on 16 bytes."""
        widths = (self.shape.hidden, self.shape.intermediate)
        return all(width * self.dtype.itemsize % 16 == 0 for width in widths)

    @property
    def device(self) -> DeviceProfile:
        """A device of the architecture."""
        return devices_of(self.capability)[0]

    @property
    def planned_shared_bytes(self) -> int | None:
        """The most shared memory that the tile says a program takes."""
        products = {"gate_up": GATE_UP_PRODUCTS, "down": DOWN_PRODUCTS}.get(self.kernel)
        if self.tile is None or products is None:
            return None
        return self.tile.shared_bytes(products, self.dtype.itemsize)

    def __str__(self) -> str:
        words = [self.kernel, f"sm_{self.capability}", self.dtype, str(self.shape), self.activation]
        if self.tile is None:
            words += [self.rounding, "merged" if self.merged else "apart"]
        else:
            tile = self.tile
            words.append(f"{tile.rows}x{tile.columns}x{tile.inner} {tile.warps}w {tile.stages}s")
            flags = ("swapped", "descriptors", "share_tail", "specialized")
            words += [flag for flag in flags if getattr(tile, flag)]
            words.append(f"splits={tile.splits} overlap={self.overlap}")
        return " ".join(words)


def devices_of(capability: int) -> list[DeviceProfile]:
    """The known devices of an architecture."""
    devices = plan.KNOWN_DEVICES.values()
    found = [each for each in devices if each.capability == divmod(capability, 10)]
    assert found, f"no known device is sm_{capability}"
    return found


def jobs() -> list[Job]:
    """Every job once."""
    wanted: dict[Job, None] = {}
    for capability in CAPABILITIES:
        for dtype in DType:
            wanted.update(dict.fromkeys(_of_plans(capability, dtype)))
            if capability not in (86, 120):
                wanted.update(dict.fromkeys(_of_textbook(capability, dtype)))
                wanted.update(dict.fromkeys(_of_gate(capability, dtype)))
        wanted.update(dict.fromkeys(_of_every_kind(capability)))
    wanted.update(dict.fromkeys(_what_else_changes_the_code()))
    return list(wanted)


def _of_plans(capability: int, dtype: DType) -> Iterator[Job]:
    """Every tile that any device of the architecture can be given, and the one for odd widths."""
    for device in devices_of(capability):
        *plans, unaligned = plan.shipped(dtype, device)
        for each in plans:
            yield from _of_plan(each, Job("", capability, dtype))
        yield from _of_plan(unaligned, Job("", capability, dtype, ODD))


def _of_plan(each: plan.Plan, like: Job) -> Iterator[Job]:
    if each.gate_up is not None:
        yield replace(like, kernel="gate_up", tile=each.gate_up, overlap=each.overlap)
    if each.down is not None:
        yield replace(like, kernel="down", tile=each.down, overlap=each.overlap)


def _of_textbook(capability: int, dtype: DType) -> Iterator[Job]:
    for shape, rows in ((LLAMA_8B, 1), (LLAMA_8B, 17), (ODD, 1)):
        tile = textbook_tile(shape, rows, dtype)
        yield Job("textbook", capability, dtype, shape, tile=tile)


def _of_gate(capability: int, dtype: DType) -> Iterator[Job]:
    plain = Job("gate", capability, dtype)
    if capability != 90 and dtype is not DType.BF16:
        # Another architecture or another type: both at once show nothing new.
        yield from (plain, replace(plain, shape=ODD, merged=True))
        return
    for activation in Activation:
        for rounding in Rounding:
            yield replace(plain, activation=activation, rounding=rounding)
    yield replace(plain, merged=True)
    yield replace(plain, shape=TINY_LLAMA, merged=True)
    yield replace(plain, shape=ODD, merged=True)
    # One long row with a tail: the odd width itself, with matrices that torch allocated.
    yield replace(plain, shape=MlpShape(4097, 14335))


def _of_every_kind(capability: int) -> Iterator[Job]:
    """A tile of each kind of kernel, whether or not a table of this architecture has it."""
    kinds = [
        (Tile(1, 4, 1024, 4, 1, False), Tile(1, 4, 1024, 4, 1, False)),
        (Tile(2, 4, 1024, 4, 1, False), Tile(2, 4, 1024, 4, 1, False)),
        (Tile(16, 64, 64, 4, 3, True), Tile(16, 64, 64, 4, 3, True, splits=2)),
    ]
    overlaps = [Overlap.NONE]
    if capability in (90, 100):
        wide = Tile(128, 128, 64, 8, 3, False, descriptors=True)
        # On Blackwell wider ones spill, and `gatefuse tune` leaves them out.
        shared = replace(
            wide, columns=128 if capability == 90 else 64, swapped=True, share_tail=True
        )
        kinds.append((shared, replace(wide, splits=2)))
        overlaps += [Overlap.EARLY, Overlap.LATE]
    if capability == 90:
        _, down = kinds[-1]
        kinds += [(tile, down) for tile in _SPECIALIZED]
    for gate_up, down in kinds:
        for overlap in overlaps:
            like = Job("gate_up", capability, DType.BF16, overlap=overlap)
            yield replace(like, tile=gate_up)
            yield replace(like, kernel="down", tile=down)


def _what_else_changes_the_code() -> Iterator[Job]:
    """688 columns leave a masked tail in every inner loop; the other activations cost registers."""
    h200 = plan.KNOWN_DEVICES["nvidia-h200"]
    first, *_, largest, _ = plan.shipped(DType.BF16, h200)
    for each in (first, largest):
        for job in _of_plan(each, Job("", 90, DType.BF16)):
            yield replace(job, shape=TINY_LLAMA)
            if job.kernel != "down":
                yield from (replace(job, activation=activation) for activation in Activation)
    for tile, activation in product(_SPECIALIZED, Activation):
        yield Job("gate_up", 90, DType.FP16, TINY_LLAMA, activation, tile)
