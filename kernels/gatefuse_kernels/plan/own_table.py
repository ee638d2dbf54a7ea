"""The table of one's own plans that the environment names."""

import os
from functools import lru_cache
from pathlib import Path

from gatefuse_kernels.errors import PlanTableError
from gatefuse_kernels.plan.device import DeviceProfile
from gatefuse_kernels.plan.table import PlanTable
from gatefuse_kernels.plan.table_text import read_table

PLAN_TABLE_VARIABLE = "GATEFUSE_PLAN_TABLE"


def own_table(device: DeviceProfile) -> PlanTable | None:
    """The table that the environment names, if it names one; each file is read once.

    Where no plan is made, on a CPU, there is no reason to ask.

    Raises:
        PlanTableError: it cannot be read, is no table or of no use on `device`; the text names the
            variable and the file.
    """
    path = os.environ.get(PLAN_TABLE_VARIABLE)
    return _checked(path, device) if path else None


@lru_cache(maxsize=64)
def _checked(path: str, device: DeviceProfile) -> PlanTable:
    table = _read(path)
    try:
        table.check_device(device)
    except PlanTableError as error:
        raise PlanTableError(f"{PLAN_TABLE_VARIABLE}={path}: {error}") from error
    return table


@lru_cache(maxsize=64)
def _read(path: str) -> PlanTable:
    try:
        return read_table(Path(path))
    except PlanTableError as error:
        raise PlanTableError(f"{PLAN_TABLE_VARIABLE}: {error}") from error
