"""What a plan needs to know of a GPU: a value, so that a plan can be made where there is none.

Bandwidth and arithmetic are datasheet peaks: dense products of 16-bit elements summed in float32,
without sparsity. GeForce boards sum in float32 at half the rate of their professional siblings.
Sources, all NVIDIA's: H100 and H200 datasheets (2023, 2024), "A100 Tensor Core GPU" (2021), L40S,
L4, A10 and A30 datasheets, the Ada, Ampere GA102 and Blackwell GB202 architecture papers, HGX B200
(2024). Shared memory per block is the opt-in limit of the CUDA C++ Programming Guide, table
"Technical Specifications per Compute Capability".
"""

import re
from dataclasses import dataclass, replace

from gatefuse_kernels.shapes import DType


@dataclass(frozen=True, slots=True)
class DeviceProfile:
    """One GPU.

    Attributes:
        name: as the driver says it, for example "NVIDIA H200".
        capability: compute capability, major and minor.
        multiprocessors: how many programs run side by side at least.
        shared_bytes_per_block: most shared memory one program can ask for.
        l2_bytes: second-level cache.
        bandwidth_bytes_per_s: peak of device memory.
        matrix_flops: peak of 16-bit products summed in float32, per second.
        single_flops: peak of float32 arithmetic without tensor cores, per second.
    """

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    shared_bytes_per_block: int
    l2_bytes: int
    bandwidth_bytes_per_s: float
    matrix_flops: float
    single_flops: float

    @property
    def operands_from_shared(self) -> bool:
        """Whether the MMA reads both operands from shared memory (Hopper, datacentre Blackwell).

        Elsewhere, on consumer Blackwell (12.x) too, they pass through registers: tiles are smaller.
        """
        return self.capability[0] in (9, 10, 11)

    @property
    def slug(self) -> str:
        """The name as a file name: "nvidia-h200"."""
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")

    def flops(self, dtype: DType) -> float:
        """Peak per second for products of `dtype`. fp32 means float32: tensor cores do not serve."""
        return self.single_flops if dtype is DType.FP32 else self.matrix_flops

    def crossover_rows(self, dtype: DType) -> int:
        """Rows from which an MLP is bound by arithmetic: flops * itemsize / (2 * bandwidth).

        Each weight element of e bytes is read once and takes part in 2M operations, so that M rows
        need `W e / bandwidth` for the bytes of W weights and `2 M W / flops` for the arithmetic.
        """
        return round(self.flops(dtype) * dtype.itemsize / (2 * self.bandwidth_bytes_per_s))


def _board(
    name: str,
    capability: tuple[int, int],
    multiprocessors: int,
    shared_kib: int,
    l2_mib: int,
    gigabytes_per_s: int,
    matrix_tflops: float,
    single_tflops: float,
) -> DeviceProfile:
    return DeviceProfile(
        name,
        capability,
        multiprocessors,
        shared_kib << 10,
        l2_mib << 20,
        gigabytes_per_s * 1e9,
        matrix_tflops * 1e12,
        single_tflops * 1e12,
    )


KNOWN_DEVICES: dict[str, DeviceProfile] = {
    device.slug: device
    for device in (
        _board("NVIDIA B200", (10, 0), 148, 227, 126, 8000, 2250, 75),
        _board("NVIDIA H200", (9, 0), 132, 227, 60, 4800, 989, 67),
        _board("NVIDIA H200 NVL", (9, 0), 132, 227, 60, 4800, 835, 60),
        _board("NVIDIA GH200 480GB", (9, 0), 132, 227, 60, 4000, 989, 67),
        _board("NVIDIA H100 80GB HBM3", (9, 0), 132, 227, 50, 3350, 989, 67),
        _board("NVIDIA H100 NVL", (9, 0), 132, 227, 50, 3900, 835, 60),
        _board("NVIDIA H100 PCIe", (9, 0), 114, 227, 50, 2000, 756, 51),
        _board("NVIDIA H20", (9, 0), 78, 227, 60, 4000, 148, 44),
        _board("NVIDIA A100-SXM4-80GB", (8, 0), 108, 163, 40, 2039, 312, 19.5),
        _board("NVIDIA A100-SXM4-40GB", (8, 0), 108, 163, 40, 1555, 312, 19.5),
        _board("NVIDIA A100 80GB PCIe", (8, 0), 108, 163, 40, 1935, 312, 19.5),
        _board("NVIDIA A100-PCIE-40GB", (8, 0), 108, 163, 40, 1555, 312, 19.5),
        _board("NVIDIA A30", (8, 0), 56, 163, 24, 933, 165, 10.3),
        _board("NVIDIA A10", (8, 6), 72, 99, 6, 600, 125, 31.2),
        _board("NVIDIA L40S", (8, 9), 142, 99, 96, 864, 362, 91.6),
        _board("NVIDIA L4", (8, 9), 58, 99, 48, 300, 121, 30.3),
        _board("NVIDIA GeForce RTX 3090", (8, 6), 82, 99, 6, 936, 71, 35.6),
        _board("NVIDIA GeForce RTX 4090", (8, 9), 128, 99, 72, 1008, 165, 82.6),
        _board("NVIDIA GeForce RTX 5090", (12, 0), 170, 99, 96, 1792, 209, 104.8),
    )
}
"""By slug."""


@dataclass(frozen=True, slots=True)
class _Generation:
    """Peaks of one multiprocessor of a generation, per second, from its best-known board."""

    bandwidth_bytes: float
    matrix_flops: float
    single_flops: float


_GENERATIONS: tuple[tuple[tuple[int, int], _Generation], ...] = (
    ((8, 0), _Generation(18e9, 2.9e12, 0.18e12)),  # A100
    ((8, 6), _Generation(11e9, 0.87e12, 0.43e12)),  # RTX 3090
    ((8, 9), _Generation(7.9e9, 1.29e12, 0.65e12)),  # RTX 4090
    ((9, 0), _Generation(25e9, 7.5e12, 0.51e12)),  # H100
    ((10, 0), _Generation(54e9, 15.2e12, 0.51e12)),  # B200
    ((12, 0), _Generation(10.5e9, 1.23e12, 0.62e12)),  # RTX 5090
)
"""By the first capability it covers, ascending."""


def profile_for(
    name: str,
    capability: tuple[int, int],
    multiprocessors: int,
    shared_bytes_per_block: int,
    l2_bytes: int,
) -> DeviceProfile:
    """The profile of a device that says this of itself.

    A known name brings its datasheet's bandwidth and arithmetic, scaled down where fewer
    multiprocessors are there than the board has (a MIG slice, a virtual GPU). An unknown one gets
    its generation's peaks per multiprocessor times their number: good to some 30 %, which decides
    only where the memory-bound rows end.
    """
    own = DeviceProfile(
        name, capability, multiprocessors, shared_bytes_per_block, l2_bytes, 0, 0, 0
    )
    known = _known(own.slug)
    if known is not None and multiprocessors <= known.multiprocessors:
        share = multiprocessors / known.multiprocessors
        return replace(
            own,
            bandwidth_bytes_per_s=known.bandwidth_bytes_per_s * share,
            matrix_flops=known.matrix_flops * share,
            single_flops=known.single_flops * share,
        )
    covering = [peaks for first, peaks in _GENERATIONS if first <= capability]
    peaks = covering[-1] if covering else _GENERATIONS[0][1]
    return replace(
        own,
        bandwidth_bytes_per_s=peaks.bandwidth_bytes * multiprocessors,
        matrix_flops=peaks.matrix_flops * multiprocessors,
        single_flops=peaks.single_flops * multiprocessors,
    )


def _known(slug: str) -> DeviceProfile | None:
    """The known board of this name; "nvidia-h200-mig-1g-18gb" is a slice of "nvidia-h200"."""
    board, _, _ = slug.partition("-mig-")
    return KNOWN_DEVICES.get(board)
