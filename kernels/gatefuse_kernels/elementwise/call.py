"""What every form of an elementwise program keeps: its call, its setting, the checks of arguments."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import torch

from gatefuse_kernels import dtypes
from gatefuse_kernels.expression import Program
from gatefuse_kernels.ledger import Ledger
from gatefuse_kernels.shapes import MAX_WIDTH, DType, check_max_rows, check_rows
from gatefuse_kernels.traffic import KernelTraffic, program_traffic


class Elementwise(Protocol):
    """One expression ready to run on one device, in one dtype."""

    @property
    def backend(self) -> str:
        """What runs: fused, eager or compiled ("auto" is resolved)."""

    @property
    def description(self) -> str:
        """One sentence: what runs on this device."""

    def padded_rows(self, rows: int) -> int:
        """Rows really computed for `rows` given ones."""

    def warm_up(self) -> None:
        """Compile whatever a call would otherwise compile."""

    def __call__(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        """Compute the outputs on the current stream; 0 <= M <= max_rows.

        Every launch is counted in the ledger; nothing is launched for an empty matrix.

        Args:
            inputs: `[M, C]` each, contiguous, in the order of `Program.inputs`.
            outputs: `[M, C]` each, contiguous, in the order of `Program.outputs`; fully overwritten.
                They overlap neither the inputs nor each other.

        Raises:
            ValueError: a count, shape, dtype, device or stride is wrong.
        """


@dataclass(frozen=True, eq=False)
class Setting:
    """A program and where it runs.

    Attributes:
        program: from `parse_program`.
        vectors: a contiguous `[C]` for each name in `program.vectors`, of the dtype, on the device.
        ledger: counts each launch.
        dtype: of inputs, vectors and outputs.
        device: where they live.
        max_rows: the largest M of a call.
        columns: C, or None for any.

    Raises:
        ValueError: a vector is missing or does not fit, or `max_rows` is out of range.
    """

    program: Program
    vectors: Mapping[str, torch.Tensor]
    ledger: Ledger
    dtype: DType
    device: torch.device
    max_rows: int
    columns: int | None = None

    def __post_init__(self) -> None:
        check_max_rows(self.max_rows)
        for name in self.program.vectors:
            self._check_vector(name)

    def _check_vector(self, name: str) -> None:
        vector = self.vectors.get(name)
        if vector is None:
            raise ValueError(f"the vector {name} is missing")
        if vector.dim() != 1 or not 1 <= vector.numel() <= MAX_WIDTH:
            raise ValueError(f"{name} must be [C], C in 1..{MAX_WIDTH}, got {list(vector.shape)}")
        if self.columns is None:
            object.__setattr__(self, "columns", vector.numel())
        if vector.numel() != self.columns:
            raise ValueError(f"{name} has {vector.numel()} columns, not {self.columns}")
        _check_kind(name, vector, self.torch_dtype, self.device)

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype as torch has it."""
        return dtypes.to_torch(self.dtype)

    @property
    def constants(self) -> list[torch.Tensor]:
        """The vectors in the program's order."""
        return [self.vectors[name] for name in self.program.vectors]

    def traffic_of(self, backend: str) -> Callable[[int, int], tuple[KernelTraffic, ...]]:
        """The launches of `backend` by M and C. A program is hashed once here, not at each call."""

        @lru_cache(maxsize=1024)
        def launches(rows: int, columns: int) -> tuple[KernelTraffic, ...]:
            return program_traffic(self.program, backend, rows, columns, self.dtype)

        return launches

    def check(
        self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
    ) -> tuple[int, int]:
        """Check the arguments of a call; return M and C.

        Raises:
            ValueError: a count, shape, dtype, device or stride is wrong.
        """
        program = self.program
        for what, names, tensors in (
            ("input", program.inputs, inputs),
            ("output", program.outputs, outputs),
        ):
            if len(tensors) != len(names):
                raise ValueError(
                    f"{len(names)} {what}s are needed ({', '.join(names)}), got {len(tensors)}"
                )
        first = inputs[0]
        if first.dim() != 2 or self.columns not in (None, first.shape[1]):
            wanted = "C" if self.columns is None else self.columns
            raise ValueError(f"{program.inputs[0]} must be [M, {wanted}], got {list(first.shape)}")
        dtype, shape = self.torch_dtype, first.shape
        for name, tensor in zip(
            (*program.inputs, *program.outputs), (*inputs, *outputs), strict=True
        ):
            if tensor.shape != shape:
                raise ValueError(f"{name} must be {list(shape)}, got {list(tensor.shape)}")
            _check_kind(name, tensor, dtype, self.device)
        rows, columns = shape
        check_rows(rows, self.max_rows)
        return rows, columns


def _check_kind(name: str, tensor: torch.Tensor, dtype: torch.dtype, device: torch.device) -> None:
    if tensor.dtype is not dtype or tensor.device != device:
        raise ValueError(
            f"{name} must be {dtype} on {device}, got {tensor.dtype} on {tensor.device}"
        )
    if not tensor.is_contiguous():
        raise ValueError(f"{name} must be contiguous")
