"""Which row counts share a compiled kernel of the packages from PyPI."""

from __future__ import annotations

from gatefuse_kernels.bench.cases import ROWS
from gatefuse_kernels.bench.packages import FlashSwiglu, Liger, distinct_kernels


def test_row_counts_that_compile_something_new() -> None:
    # Buckets 0 for 1 to 16 rows, then 1, 2, 4, 10, 12, 16, 24 and 40 twice.
    assert distinct_kernels(ROWS) == (1, 2, 16, 32, 64)
    assert distinct_kernels((3, 5, 33, 47, 4096)) == (3, 33, 4096)
    assert distinct_kernels(()) == ()


def test_a_package_that_is_not_there_has_no_version() -> None:
    assert (FlashSwiglu().version, Liger().version) == ("", "")
