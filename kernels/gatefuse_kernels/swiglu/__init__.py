"""The fused gated MLP: one file per form, each kernel with its launcher."""
