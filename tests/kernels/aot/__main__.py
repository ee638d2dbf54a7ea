"""Compiles every job for GPUs that need not be there; prints one JSON line per compiled kernel.

A program of its own (`test_compiled_kernels.py` runs it, as `python -m tests.kernels.aot`): two
spawned processes share the work, and the compiler must not be replaced by the interpreter. Triton's
own cache remembers what was compiled, by source.
"""

from __future__ import annotations

import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

from tests.kernels.aot.compiling import compile_job
from tests.kernels.aot.jobs import jobs


def main() -> None:
    """Print the facts of every job."""
    # Spawned, not forked: torch's threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        for found in pool.map(compile_job, jobs()):
            for facts in found:
                print(json.dumps(facts.to_json()), flush=True)


if __name__ == "__main__":
    main()
