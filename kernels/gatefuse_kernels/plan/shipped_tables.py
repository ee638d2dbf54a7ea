"""The tables that come with the package, one file per device in `tables/`."""

from functools import cache
from importlib.resources import files

from gatefuse_kernels.plan.device import DeviceProfile
from gatefuse_kernels.plan.table import PlanTable
from gatefuse_kernels.plan.table_text import parse_table


@cache
def shipped_tables() -> tuple[PlanTable, ...]:
    """Every shipped table, in order of file names.

    Raises:
        PlanTableError: one is broken.
    """
    folder = files("gatefuse_kernels.plan").joinpath("tables")
    named = sorted((file.name, file) for file in folder.iterdir() if file.name.endswith(".json"))
    return tuple(parse_table(file.read_text(encoding="utf-8"), name) for name, file in named)


def table_of_generation(device: DeviceProfile) -> PlanTable | None:
    """The table of this device, else of one whose programs compile to the same instructions."""
    tables = [table for table in shipped_tables() if table.capability == device.capability]
    own = [table for table in tables if table.is_of(device)]
    return next(iter((*own, *tables)), None)
