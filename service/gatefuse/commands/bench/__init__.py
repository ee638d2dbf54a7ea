"""`gatefuse bench`: what this machine's GPU does with the kernels, measured."""
