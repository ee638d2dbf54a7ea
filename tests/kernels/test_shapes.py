"""Shapes, row buckets and what imports without torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gatefuse_kernels.shapes import MAX_ROWS, MAX_WIDTH, DType, MlpShape, bucket_for, row_buckets


@pytest.mark.parametrize(
    ("max_rows", "expected"),
    [
        (1, (1,)),
        (2, (1, 2)),
        (3, (1, 2, 3)),
        (8, (1, 2, 4, 8)),
        (200, (1, 2, 4, 8, 16, 32, 64, 128, 200)),
    ],
)
def test_row_buckets(max_rows: int, expected: tuple[int, ...]) -> None:
    assert row_buckets(max_rows) == expected


@pytest.mark.parametrize("max_rows", [0, -1, MAX_ROWS + 1])
def test_row_buckets_refuse(max_rows: int) -> None:
    with pytest.raises(ValueError, match="max_rows"):
        row_buckets(max_rows)


def test_bucket_for() -> None:
    buckets = row_buckets(12)
    assert [bucket_for(rows, buckets) for rows in (1, 2, 3, 8, 9, 12)] == [1, 2, 4, 8, 12, 12]
    with pytest.raises(ValueError, match="13"):
        bucket_for(13, buckets)


@pytest.mark.parametrize("width", [0, -4, MAX_WIDTH + 1, True, 4.0])
def test_widths_are_checked(width: int) -> None:
    with pytest.raises(ValueError, match="hidden"):
        MlpShape(width, 8)
    with pytest.raises(ValueError, match="intermediate"):
        MlpShape(8, width)


def test_itemsize() -> None:
    assert [dtype.itemsize for dtype in (DType.FP32, DType.FP16, DType.BF16)] == [4, 2, 2]


@pytest.mark.parametrize("module", ["shapes", "traffic", "ledger", "expression", "plan", "errors"])
def test_imports_without_torch(module: str) -> None:
    code = f"import sys, gatefuse_kernels.{module}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
