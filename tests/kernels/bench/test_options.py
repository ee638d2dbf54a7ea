"""The command that a report names."""

from __future__ import annotations

from gatefuse_kernels.bench.options import Options
from gatefuse_kernels.shapes import MlpShape


def test_the_command_repeats_the_run() -> None:
    options = Options(shapes=(MlpShape(256, 688),), rows=(1, 40), deterministic=True, jobs=7)
    assert options.command == (
        "gatefuse bench kernels --shapes 256x688 --rows 1,40 --dtype bf16 --rounds 200 "
        "--peers eager,compiled,max_autotune,merged,flash_swiglu,liger --autotune-rows 1,16,128,512 "
        "--elements 100000000 --deterministic --compositions 1000"
    )


def test_what_was_left_out_is_not_named() -> None:
    command = Options(peers=(), elements=0).command
    assert "--peers none" in command
    assert "--elements 0" in command
    assert "--autotune-rows" not in command
    assert "--deterministic" not in command
