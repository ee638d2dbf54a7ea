"""How a process that moves big messages should have its memory allocated.

glibc maps each block above a threshold afresh and gives it back when it is freed, so that every big message faults its
pages in again: twice the time of a call with 2 MiB each way. With these variables such blocks come from the heap and
stay there. They are read when a process starts.
"""

KEEP_BIG_BLOCKS = {
    "MALLOC_MMAP_THRESHOLD_": str(2**30),
    "MALLOC_TRIM_THRESHOLD_": str(2**30),
}
