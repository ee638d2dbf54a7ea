"""Expressions as one generated Triton kernel: one launch, every input read once, every output written once."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch

from gatefuse_kernels.elementwise.call import Setting
from gatefuse_kernels.elementwise.generated import kernel_of
from gatefuse_kernels.elementwise.tiling import WARPS, choose_tiling
from gatefuse_kernels.launch.jit import Variant
from gatefuse_kernels.plan import MAX_GRID

_VECTOR_BYTES = 16

_OPTIONS = {"num_warps": WARPS, "enable_reflect_ftz": False, "enable_fp_fusion": False}
"""Denormal numbers stay what they are in libdevice's functions, too, as in torch's kernels. And a product
that is too large is infinite before anything is added to it: no op of the expression melts into the next."""


class FusedElementwise:
    """A kernel of its own for the program and dtype; arithmetic in float32, one rounding."""

    backend = "fused"

    def __init__(self, setting: Setting) -> None:
        """Generate the kernel; Triton compiles it at the first launch or `warm_up`."""
        self._setting = setting
        self._traffic = setting.traffic_of("fused")
        self._kernel = kernel_of(setting.program, setting.dtype)
        self._tiling = choose_tiling(setting.program, setting.dtype.itemsize, setting.columns)
        self._vectors = setting.constants
        self._variants: dict[int, Variant] = {}
        # Where every row must start on its own, C decides how wide an access can be.
        self._addresses = _VECTOR_BYTES
        for vector in self._vectors:
            self._addresses |= vector.data_ptr() | vector.nbytes

    @property
    def description(self) -> str:
        """One sentence: what runs."""
        return (
            f"fused: {self._setting.program.text} as one generated Triton kernel, in float32 with "
            "one rounding"
        )

    def padded_rows(self, rows: int) -> int:
        """No padding."""
        return rows

    def warm_up(self) -> None:
        """Compile for tensors as torch allocates them; a view that starts elsewhere compiles later."""
        setting = self._setting
        like = torch.zeros(
            1, setting.columns or 1, dtype=setting.torch_dtype, device=setting.device
        )
        program = setting.program
        self._launch([like] * len(program.inputs), [like.clone() for _ in program.outputs])

    def __call__(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        """Launch the kernel; see `Elementwise`.

        An output may be an input itself: what a program reads it has read before it writes.

        Raises:
            ValueError: see `Elementwise`; or more elements than a launch can cover (some 2^40).
        """
        setting = self._setting
        rows, columns = setting.check(inputs, outputs)
        if rows == 0 or columns == 0:
            return
        self._launch(inputs, outputs)
        (launch,) = self._traffic(rows, columns)
        setting.ledger.count(launch)

    def _launch(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        rows, columns = inputs[0].shape
        addresses = self._addresses
        for tensor in (*inputs, *outputs):
            addresses |= tensor.data_ptr()
        alignment = addresses & -addresses
        tiling = self._tiling
        if self._vectors:
            size = rows
            programs = -(-rows // tiling.rows) * -(-columns // tiling.columns)
        else:
            size = rows * columns
            programs = -(-size // tiling.elements)
        if programs > MAX_GRID:
            raise ValueError(f"{rows} x {columns} elements need {programs} programs")
        variant = self._variants.get(alignment)
        if variant is None:
            variant = self._variants[alignment] = self._variant(alignment)
        with _current(inputs[0].device):
            variant.launch(programs, *inputs, *self._vectors, *outputs, size)

    def _variant(self, alignment: int) -> Variant:
        tiling = self._tiling
        constants: dict[str, object] = {"ALIGNMENT": alignment}
        if self._vectors:
            constants |= {
                "COLUMNS": self._setting.columns,
                "BLOCK_ROWS": tiling.rows,
                "BLOCK_COLUMNS": tiling.columns,
            }
        else:
            constants |= {
                "VECTOR": alignment // self._setting.dtype.itemsize,
                "BLOCK": tiling.elements,
            }
        return Variant(self._kernel, constants, **_OPTIONS)


def _current(device: torch.device) -> AbstractContextManager[object]:
    """Triton launches on the current device, whatever the tensors' is."""
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(device)
