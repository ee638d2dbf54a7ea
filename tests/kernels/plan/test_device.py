"""Profiles of devices, known and unknown."""

from __future__ import annotations

from typing import Any

import pytest

from gatefuse_kernels.plan import KNOWN_DEVICES, DeviceProfile, profile_for
from gatefuse_kernels.shapes import DType

H200 = KNOWN_DEVICES["nvidia-h200"]


def seen(device: DeviceProfile, **changes: Any) -> DeviceProfile:
    """What `profile_for` makes of what a driver says of the device."""
    facts: dict[str, Any] = {
        "name": device.name,
        "capability": device.capability,
        "multiprocessors": device.multiprocessors,
        "shared_bytes_per_block": device.shared_bytes_per_block,
        "l2_bytes": device.l2_bytes,
    }
    return profile_for(**(facts | changes))


@pytest.mark.parametrize("device", KNOWN_DEVICES.values(), ids=lambda device: device.slug)
def test_a_known_name_brings_its_datasheet(device: DeviceProfile) -> None:
    assert seen(device) == device


@pytest.mark.parametrize("device", KNOWN_DEVICES.values(), ids=lambda device: device.slug)
def test_the_estimate_for_an_unknown_name_is_near(device: DeviceProfile) -> None:
    """Within the spread of a generation's boards: the slowest memory or clock against the best."""
    guess = seen(device, name="NVIDIA Something")
    for figure in ("bandwidth_bytes_per_s", "matrix_flops", "single_flops"):
        ratio = getattr(guess, figure) / getattr(device, figure)
        assert 0.35 < ratio < 4, (figure, ratio)
    assert guess.shared_bytes_per_block == device.shared_bytes_per_block


def test_a_slice_is_a_part_of_its_board() -> None:
    part = seen(H200, name="NVIDIA H200 MIG 1g.18gb", multiprocessors=16)
    assert part.bandwidth_bytes_per_s == pytest.approx(H200.bandwidth_bytes_per_s * 16 / 132)
    assert part.crossover_rows(DType.BF16) == H200.crossover_rows(DType.BF16)


def test_h20_is_not_an_h200() -> None:
    assert KNOWN_DEVICES["nvidia-h20"].matrix_flops < H200.matrix_flops / 6


def test_crossover() -> None:
    """M* = flops e / (2 bandwidth): 989e12 * 2 / (2 * 4.8e12)."""
    assert H200.crossover_rows(DType.BF16) == H200.crossover_rows(DType.FP16) == 206
    assert H200.crossover_rows(DType.FP32) == 28
    assert KNOWN_DEVICES["nvidia-l40s"].crossover_rows(DType.BF16) == 419


def test_where_operands_come_from() -> None:
    """Consumer Blackwell is newer than Hopper, but multiplies as Ada does."""
    shared = {name for name, device in KNOWN_DEVICES.items() if device.operands_from_shared}
    assert {"nvidia-b200", "nvidia-h200", "nvidia-h100-pcie"} <= shared
    assert not {"nvidia-geforce-rtx-5090", "nvidia-l40s", "nvidia-a30"} & shared
