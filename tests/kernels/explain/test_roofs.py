"""Devices by name, and what they allow."""

from __future__ import annotations

import pytest

from gatefuse_kernels.explain.roofs import (
    UnknownDeviceError,
    find_device,
    roofs_given,
    roofs_of,
)
from gatefuse_kernels.plan import KNOWN_DEVICES
from gatefuse_kernels.shapes import DType


@pytest.mark.parametrize("slug", KNOWN_DEVICES)
def test_every_slug_finds_its_own(slug: str) -> None:
    assert find_device(slug) is KNOWN_DEVICES[slug]


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("h200", "nvidia-h200"),
        ("H200", "nvidia-h200"),
        ("h200 nvl", "nvidia-h200-nvl"),
        ("rtx-4090", "nvidia-geforce-rtx-4090"),
        ("4090", "nvidia-geforce-rtx-4090"),
        ("gh200", "nvidia-gh200-480gb"),
        ("NVIDIA L4", "nvidia-l4"),
    ],
)
def test_short_names(name: str, slug: str) -> None:
    assert find_device(name) is KNOWN_DEVICES[slug]


@pytest.mark.parametrize("name", ["h100", "a100", "rtx"])
def test_one_of_several(name: str) -> None:
    with pytest.raises(UnknownDeviceError, match="name one of them"):
        find_device(name)


@pytest.mark.parametrize("name", ["", "tpu", "h2", "200"])
def test_unknown_names_are_answered_with_the_known(name: str) -> None:
    with pytest.raises(UnknownDeviceError, match="--bandwidth and --flops") as caught:
        find_device(name)
    assert all(slug in str(caught.value) for slug in KNOWN_DEVICES)


@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("slug", KNOWN_DEVICES)
def test_roofs_turn_where_the_plans_do(slug: str, dtype: DType) -> None:
    device = KNOWN_DEVICES[slug]
    roofs = roofs_of(device, dtype)
    assert roofs.turning_rows(dtype) == device.crossover_rows(dtype)
    assert roofs.product_flops == device.flops(dtype)


def test_given_roofs() -> None:
    roofs = roofs_given(504e9, 29e12, "mine")
    assert roofs.profile is None
    assert roofs.ridge(roofs.elementwise_flops) == pytest.approx(57.5, abs=0.05)
