"""What every test shares: tests marked ``gpu`` run where there is a CUDA device, and only there."""

from __future__ import annotations

import pytest


def _has_cuda_device() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects the tests marked ``gpu`` on a machine without a CUDA device, and says how many."""
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    # torch is imported only if a test could need it: most runs of a few tests do without.
    if not gpu_items or _has_cuda_device():
        return
    config.hook.pytest_deselected(items=gpu_items)
    items[:] = [item for item in items if not item.get_closest_marker("gpu")]
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        reporter.write_line(
            f"{len(gpu_items)} tests marked gpu are deselected: no CUDA device on this machine"
        )
