"""What an answer may lose: relative Frobenius error against float64. Pure: no torch here."""

from gatefuse_kernels.shapes import DType

FUSED_ERROR_LIMIT = {DType.BF16: 2.6e-3, DType.FP16: 3.2e-4, DType.FP32: 1e-5}
"""With the gate applied to float32 sums."""

EAGER_ERROR_LIMIT = {DType.BF16: 4.2e-3, DType.FP16: 5.4e-4, DType.FP32: 1e-5}
"""With every operation rounded: five of them lose a little less."""
