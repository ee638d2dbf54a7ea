"""What an explanation is made of: values that a table, JSON and a picture are written from."""

from dataclasses import dataclass
from enum import StrEnum

from gatefuse_kernels.bench.results import Spread
from gatefuse_kernels.explain.occupancy import Compiled
from gatefuse_kernels.explain.roofs import Roofs
from gatefuse_kernels.shapes import DType
from gatefuse_kernels.traffic import KernelTraffic, passes


class Bound(StrEnum):
    """What a launch waits for."""

    MEMORY = "memory"
    ARITHMETIC = "arithmetic"
    LAUNCH = "launch"
    """Its bytes and its arithmetic together take less than starting it."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One launch.

    Attributes:
        traffic: what it moves and computes.
        predicted_s: by the device's roofs.
        bound: what that time is spent on.
    """

    traffic: KernelTraffic
    predicted_s: float
    bound: Bound


@dataclass(frozen=True, slots=True)
class Form:
    """One way to compute it.

    Attributes:
        backend: eager, compiled, fused, textbook; or ideal, which no kernel is.
        description: one sentence.
        kernels: launches in order.
        peak_intermediate_bytes: memory for what is neither input nor output.
        compiled: what the compiler made of our kernels, where that was asked for.
        measured: of the whole form, where there is a GPU.
    """

    backend: str
    description: str
    kernels: tuple[Kernel, ...]
    peak_intermediate_bytes: int
    compiled: tuple[Compiled, ...] = ()
    measured: Spread | None = None

    @property
    def launches(self) -> int:
        """Kernels of one call."""
        return len(self.kernels)

    @property
    def passes(self) -> int:
        """Trips of whole tensors through memory."""
        return passes([kernel.traffic for kernel in self.kernels])

    @property
    def bytes_moved(self) -> int:
        """Read and written."""
        return sum(kernel.traffic.bytes_moved for kernel in self.kernels)

    @property
    def flops(self) -> int:
        """Of all launches."""
        return sum(kernel.traffic.flops for kernel in self.kernels)

    @property
    def intensity(self) -> float:
        """FLOPs per byte."""
        return self.flops / self.bytes_moved

    @property
    def predicted_s(self) -> float:
        """Seconds by the device's roofs."""
        return sum(kernel.predicted_s for kernel in self.kernels)

    @property
    def bound(self) -> Bound:
        """What most of the predicted time is spent on."""
        spent = dict.fromkeys(Bound, 0.0)
        for kernel in self.kernels:
            spent[kernel.bound] += kernel.predicted_s
        return max(spent, key=lambda bound: spent[bound])


@dataclass(frozen=True, slots=True)
class Point:
    """One size.

    Attributes:
        rows: M.
        columns: C of an elementwise program; H of an MLP.
        forms: one of each backend.
        advice: whether to fuse, and why, a sentence each.
    """

    rows: int
    columns: int
    forms: tuple[Form, ...]
    advice: tuple[str, ...]

    @property
    def elements(self) -> int:
        """Of one tensor of rows."""
        return self.rows * self.columns

    def form(self, backend: str) -> Form:
        """The form of a backend.

        Raises:
            KeyError: there is none.
        """
        for form in self.forms:
            if form.backend == backend:
                return form
        raise KeyError(backend)


@dataclass(frozen=True, slots=True)
class Explanation:
    """All that was asked.

    Attributes:
        subject: "MLP 4096x14336" or the program's text.
        is_mlp: or else an elementwise program.
        dtype: of every tensor.
        roofs: of the device.
        points: one of each size.
        turning: where the advice changes, a sentence.
    """

    subject: str
    is_mlp: bool
    dtype: DType
    roofs: Roofs
    points: tuple[Point, ...]
    turning: str
