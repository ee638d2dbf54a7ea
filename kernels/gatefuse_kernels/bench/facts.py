"""What the figures depend on; no paths and no names of machines."""

import platform
import subprocess
import time

import torch
import triton

from gatefuse_kernels.bench.peers import Peer

_PACKAGES = ("flash_swiglu", "liger")
"""Peers with a version of their own."""


def run_facts(peers: dict[str, Peer]) -> dict[str, str]:
    """Date, device, and the versions of what ran."""
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    packages = {
        name: peer.version or "not installed" for name, peer in peers.items() if name in _PACKAGES
    }
    return {
        "date": time.strftime("%Y-%m-%d"),
        "device": properties.name,
        "multiprocessors": str(properties.multi_processor_count),
        "l2_bytes": str(properties.L2_cache_size),
        "driver": _driver_version(),
        "cuda": torch.version.cuda or "",
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
        **packages,
    }


def _driver_version() -> str:
    """As nvidia-smi says it, which not every container has."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return result.stdout.split("\n")[0].strip()
