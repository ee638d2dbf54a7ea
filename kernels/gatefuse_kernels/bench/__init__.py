"""`gatefuse bench kernels`: the fused MLP against what the device can do and what others do, in one run."""
