"""The profile of a real device, as its driver describes it."""

from functools import cache

import torch

from gatefuse_kernels.plan.device import DeviceProfile, profile_for


@cache
def profile_of(device: torch.device) -> DeviceProfile:
    """The profile of a CUDA device that has an index, as any tensor's device has."""
    found = torch.cuda.get_device_properties(device)
    return profile_for(
        name=found.name,
        capability=(found.major, found.minor),
        multiprocessors=found.multi_processor_count,
        # torch's stubs do not know it.
        shared_bytes_per_block=found.shared_memory_per_block_optin,  # type: ignore[attr-defined]
        l2_bytes=found.L2_cache_size,
    )
