"""Numbers as people write and read them."""

from __future__ import annotations

import pytest

from gatefuse_kernels.explain.quantities import (
    MOST_ELEMENTS,
    digits,
    parse_bandwidth,
    parse_elements,
    parse_flops,
    scaled,
    seconds,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("504GB/s", 504e9),
        ("504 GB/s", 504e9),
        ("4.8TB/s", 4.8e12),
        ("1GiB/s", 2**30),
        ("504e9 B/s", 504e9),
        ("900GBps", 900e9),
        ("504gb/s", 504e9),
        ("504G", 504e9),
        ("1gib/s", 2**30),
    ],
)
def test_bandwidths(text: str, value: float) -> None:
    assert parse_bandwidth(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("29TFLOP/s", 29e12),
        ("29TFLOPS", 29e12),
        ("1PFLOPs", 1e15),
        ("5T", 5e12),
        ("29tflops", 29e12),
    ],
)
def test_rates(text: str, value: float) -> None:
    assert parse_flops(text) == value


@pytest.mark.parametrize(
    ("text", "count"), [("100M", 10**8), ("100m", 10**8), ("1.5K", 1500), ("7", 7)]
)
def test_counts(text: str, count: int) -> None:
    assert parse_elements(text) == count


@pytest.mark.parametrize(
    "text", ["", "GB/s", "-3GB/s", "3XB/s", "0GB/s", "nan", "inf", "1e999", "3iB/s", "29TFLOP/s"]
)
def test_no_bandwidths(text: str) -> None:
    with pytest.raises(ValueError, match="504GB/s"):
        parse_bandwidth(text)


def test_a_number_without_a_unit() -> None:
    with pytest.raises(ValueError, match="'504', which has no unit"):
        parse_bandwidth("504")
    with pytest.raises(ValueError, match="'29e12', which has no unit"):
        parse_flops("29e12")


@pytest.mark.parametrize("text", ["0.5", "0", f"{MOST_ELEMENTS + 1}", "1e300", "100MB", "x"])
def test_no_counts(text: str) -> None:
    with pytest.raises(ValueError, match="elements"):
        parse_elements(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (400_000_000, "400 MB"),
        (15.2e9, "15.2 GB"),
        (999_960, "1 MB"),
        (1234, "1.23 KB"),
        (0.25, "0.25 B"),
        (4e20, "400 EB"),
    ],
)
def test_scaled(value: float, text: str) -> None:
    assert scaled(value, "B") == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (80.9e-6, "80.9 µs"),
        (0.794e-3, "0.794 ms"),
        (1.2, "1.2 s"),
        (1e-7, "0.1 µs"),
        (4.17e-10, "0.417 ns"),
        (4.2e-13, "under 0.1 ns"),
        (0.0, "0 s"),
    ],
)
def test_times(value: float, text: str) -> None:
    assert seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0123456, "0.0123"),
        (0.0000123, "0.0000123"),
        (9.996, "10"),
        (99.94, "99.9"),
        (99.96, "100"),
        (5.0, "5"),
        (123456, "123456"),
        (111_111_111, "111000000"),
    ],
)
def test_digits(value: float, text: str) -> None:
    assert digits(value) == text
