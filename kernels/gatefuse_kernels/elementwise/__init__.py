"""Elementwise programs made runnable: eager, compiled, fused."""

from gatefuse_kernels.elementwise.backends import (
    ELEMENTWISE_BACKENDS,
    ElementwiseBackend,
    build_elementwise,
)
from gatefuse_kernels.elementwise.call import Elementwise

__all__ = ["ELEMENTWISE_BACKENDS", "Elementwise", "ElementwiseBackend", "build_elementwise"]
