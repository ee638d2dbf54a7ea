"""A chain through torch.compile at static shapes: what somebody who measures it would write.

The backend `compiled` of the service compiles for any number of rows, which Inductor's kernels pay for:
they cannot know that a size is a multiple of what one access takes.
"""

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import cast

import torch

from gatefuse_kernels.elementwise.torch_ops import evaluate, store
from gatefuse_kernels.expression import CASTS, Program
from gatefuse_kernels.shapes import DType

Tensors = Sequence[torch.Tensor]
ChainCall = Callable[[Tensors, Tensors], object]
"""Inputs and outputs `[M, C]` each; queues work on the current stream."""


def compile_chain(program: Program, dtype: DType, constants: Tensors) -> ChainCall:
    """Torch.compile of the whole program in its default mode; it compiles at the first call.

    Args:
        program: what to compute, every op in float32.
        dtype: of the tensors; for the name only.
        constants: the per-column constants `[C]` in the program's order.
    """
    names = (*program.inputs, *program.vectors)

    def chain(inputs: Tensors, vectors: Tensors, outputs: Tensors) -> None:
        tensors = dict(zip(names, (*inputs, *vectors), strict=True))
        store(evaluate(program, tensors, in_float32=True), outputs)

    # A code object for each: dynamo's recompile limit counts per code object.
    code = chain.__code__.replace(co_name=f"chain_{dtype}")
    function = FunctionType(code, chain.__globals__, code.co_name, None, chain.__closure__)
    rounds = any(step.op in CASTS for step in program.steps)
    # Without this Inductor leaves out a cast to 16 bits that is followed by one back.
    options: dict[str, str | int | bool | Callable[..., object]] = {
        "emulate_precision_casts": rounds
    }
    compiled = cast(
        Callable[[Tensors, Tensors, Tensors], None],
        torch.compile(function, dynamic=False, fullgraph=True, options=options),
    )
    return lambda inputs, outputs: compiled(inputs, constants, outputs)
