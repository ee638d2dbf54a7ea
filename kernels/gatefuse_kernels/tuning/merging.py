"""Puts what was measured into a table, and the table into its file."""

import os
from pathlib import Path

from gatefuse_kernels.plan import DeviceProfile, PlanTable, format_table, read_table
from gatefuse_kernels.plan.table import Entry


def open_table(path: Path, device: DeviceProfile) -> PlanTable:
    """The table in `path`, or an empty one of this device if there is no such file.

    Raises:
        PlanTableError: the file is no table.
        ValueError: it is of another device.
    """
    if not path.exists():
        return PlanTable(device.name, device.capability, device.multiprocessors, ())
    table = read_table(path)
    table.check_device(device)
    return table


def with_entry(table: PlanTable, entry: Entry) -> PlanTable:
    """The table with this entry in the place of one for the same shape and type, or at the end."""
    others = [
        each for each in table.entries if (each.shape, each.dtype) != (entry.shape, entry.dtype)
    ]
    if len(others) == len(table.entries):
        entries = (*others, entry)
    else:
        entries = tuple(
            entry if (each.shape, each.dtype) == (entry.shape, entry.dtype) else each
            for each in table.entries
        )
    return PlanTable(table.device, table.capability, table.multiprocessors, entries)


def write_table(table: PlanTable, path: Path) -> None:
    """Write the file whole: whoever reads it meanwhile sees the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(format_table(table), encoding="utf-8")
    os.replace(partial, path)
