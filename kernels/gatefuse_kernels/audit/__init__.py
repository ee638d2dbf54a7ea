"""What is counted held against what the GPU did: launches by its profiler, bytes by its hardware counters.

Pure but for `profiling` and `child`, which run on a GPU.
"""
