"""`gatefuse audit`: what is counted held against what the GPU did."""
