"""`gatefuse bench`: kernels against what the device can do and what others do, in one run."""
