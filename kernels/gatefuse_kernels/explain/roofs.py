"""What a device allows: bytes per second and FLOPs per second, by name or as given."""

from dataclasses import dataclass

from gatefuse_kernels.plan import KNOWN_DEVICES, DeviceProfile
from gatefuse_kernels.shapes import DType

_MAKERS = ("nvidia-geforce-", "nvidia-")


class UnknownDeviceError(ValueError):
    """No device has this name; the text lists those that are known."""


@dataclass(frozen=True, slots=True)
class Roofs:
    """The two ceilings of a roofline.

    Attributes:
        name: for people.
        bandwidth_bytes_per_s: of device memory.
        product_flops: per second, of matrix products in the element type at hand.
        elementwise_flops: per second, of what is no product: CUDA cores in float32.
        profile: the whole device, if it is known: plans and kernels depend on more than two roofs.
    """

    name: str
    bandwidth_bytes_per_s: float
    product_flops: float
    elementwise_flops: float
    profile: DeviceProfile | None = None

    def ridge(self, flops_per_s: float) -> float:
        """FLOPs per byte above which arithmetic at this rate takes longer than the bytes."""
        return flops_per_s / self.bandwidth_bytes_per_s

    def turning_rows(self, dtype: DType) -> int:
        """Rows from which an MLP is bound by arithmetic; see `DeviceProfile.crossover_rows`."""
        return round(self.product_flops * dtype.itemsize / (2 * self.bandwidth_bytes_per_s))


def roofs_of(device: DeviceProfile, dtype: DType) -> Roofs:
    """A known device's, its datasheet's peaks."""
    return Roofs(
        device.name,
        device.bandwidth_bytes_per_s,
        device.flops(dtype),
        device.single_flops,
        device,
    )


def roofs_given(bandwidth_bytes_per_s: float, flops_per_s: float, name: str) -> Roofs:
    """Those of a device of which nothing else is known; one rate for all arithmetic."""
    return Roofs(name, bandwidth_bytes_per_s, flops_per_s, flops_per_s)


def find_device(name: str) -> DeviceProfile:
    """The known device of a name: its slug, or the part of it that tells it apart ("h200", "rtx-4090").

    Raises:
        UnknownDeviceError: none has it, or several do.
    """
    wanted = "-".join(name.lower().replace("_", "-").split())
    for prefix in ("", *_MAKERS):
        if (device := KNOWN_DEVICES.get(prefix + wanted)) is not None:
            return device
    found = [slug for slug in KNOWN_DEVICES if f"-{wanted}-" in f"-{slug}-"] if wanted else []
    if len(found) == 1:
        return KNOWN_DEVICES[found[0]]
    if found:
        raise UnknownDeviceError(f"{name!r} may be {', '.join(found)}: name one of them")
    raise UnknownDeviceError(
        f"no device is known as {name!r}; known are {', '.join(KNOWN_DEVICES)}; of another, give "
        "--bandwidth and --flops"
    )
