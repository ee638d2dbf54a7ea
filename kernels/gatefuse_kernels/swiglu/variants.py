"""Which constants and options a tile stands for, in the kernels that multiply on tensor cores."""

from gatefuse_kernels.launch.jit import Kernel, Variant
from gatefuse_kernels.plan import Overlap, Tile
from gatefuse_kernels.weights.packed import MlpWeights


def gate_up_variant(
    kernel: Kernel, weights: MlpWeights, tile: Tile, overlap: Overlap, **more: object
) -> Variant:
    """A gate_up kernel's variant; `overlap` says when a dependent down may start.

    `more` are constants of this kernel alone.
    """
    constants = {**gate_up_constants(weights, tile, overlap), "SWAPPED": tile.swapped, **more}
    return Variant(kernel, constants, num_warps=tile.warps, num_stages=tile.stages)


def gate_up_constants(weights: MlpWeights, tile: Tile, overlap: Overlap) -> dict[str, object]:
    """What all gate_up kernels for tensor cores are told."""
    return {
        **_of_tile(weights, tile),
        "ACTIVATION": weights.activation.value,
        "STARTS_EARLY": overlap is Overlap.EARLY,
        "STARTS_LATE": overlap is Overlap.LATE,
    }


def down_variant(kernel: Kernel, weights: MlpWeights, tile: Tile, overlap: Overlap) -> Variant:
    """A down kernel's variant; `overlap` is as given to the gate_up launch just before."""
    is_overlapped = overlap is not Overlap.NONE
    constants = {
        **_of_tile(weights, tile),
        "SWAPPED": tile.swapped,
        "SPLITS": tile.splits,
        "IS_OVERLAPPED": is_overlapped,
    }
    return Variant(
        kernel,
        constants,
        num_warps=tile.warps,
        num_stages=tile.stages,
        launch_pdl=is_overlapped,
    )


def _of_tile(weights: MlpWeights, tile: Tile) -> dict[str, object]:
    return {
        "HIDDEN": weights.shape.hidden,
        "INTERMEDIATE": weights.shape.intermediate,
        "BLOCK_ROWS": tile.rows,
        "BLOCK_COLUMNS": tile.columns,
        "BLOCK_INNER": tile.inner,
        "GROUP": tile.group,
    }
