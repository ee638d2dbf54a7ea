"""One job, from launch to facts."""

from __future__ import annotations

from tests.kernels.aot.facts import Facts, facts_of
from tests.kernels.aot.jobs import Job
from tests.kernels.aot.launches import LAUNCHES

from gatefuse_kernels.aot.offline import compiling_for


def compile_job(job: Job) -> list[Facts]:
    """Compile all that the job launches."""
    with compiling_for(job.capability) as compiled:
        LAUNCHES[job.kernel](job)
    planned = job.planned_shared_bytes
    return [
        facts_of(str(job), kernel, job.capability, job.dtype.value, job.is_aligned, made, planned)
        for kernel, made in compiled
    ]
