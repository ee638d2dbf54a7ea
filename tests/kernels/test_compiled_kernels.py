"""What the compiler makes of every shipped tile, for sm_90 and sm_80, with no GPU at hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

SHARED_LIMIT_BYTES = {90: 232_448, 80: 166_912}


@pytest.fixture(scope="module")
def variants() -> list[dict[str, Any]]:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    program = Path(__file__).with_name("aot.py")
    result = subprocess.run(
        [sys.executable, str(program)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    return [json.loads(line) for line in result.stdout.splitlines()]


def offenders(variants: list[dict[str, Any]], broken: Any) -> list[str]:
    return [f"{variant}" for variant in variants if broken(variant)]


def test_the_matrix_is_complete(variants: list[dict[str, Any]]) -> None:
    kinds = {(variant["dtype"], variant["capability"]) for variant in variants}
    assert kinds == {("bf16", 90), ("fp16", 90), ("fp32", 90), ("bf16", 80)}
    assert len({variant["job"] for variant in variants}) == len(variants) > 40


def test_nothing_spills(variants: list[dict[str, Any]]) -> None:
    assert not offenders(variants, lambda v: v["stack_bytes"] > 0)


def test_shared_memory_fits(variants: list[dict[str, Any]]) -> None:
    assert not offenders(
        variants, lambda v: v["shared_bytes"] > SHARED_LIMIT_BYTES[v["capability"]]
    )


def test_tensor_cores_are_used_except_for_fp32(variants: list[dict[str, Any]]) -> None:
    assert not offenders(
        variants, lambda v: (v["tensor_core_instructions"] > 0) == (v["dtype"] == "fp32")
    )


def test_the_large_tiles_use_wgmma(variants: list[dict[str, Any]]) -> None:
    hopper = [v for v in variants if v["capability"] == 90 and "128x128x64" in v["job"]]
    assert hopper
    assert not offenders(hopper, lambda v: v["wgmma_instructions"] == 0)


def test_aligned_widths_move_128_bits_at_a_time(variants: list[dict[str, Any]]) -> None:
    aligned = [variant for variant in variants if variant["aligned"]]
    assert not offenders(aligned, lambda v: v["async_copy_bytes"] != [16])
    assert not offenders(aligned, lambda v: any(".v4." not in load for load in v["loads"]))
