"""What fusion buys, explained before anything runs: passes, bytes, launches, memory and time by backend.

Pure but for `compiling` (triton) and `measuring` (a GPU), which are imported only where those are.
"""
