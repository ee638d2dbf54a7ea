"""Puts what was measured into a table, and the table into its file."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gatefuse_kernels.errors import PlanTableError
from gatefuse_kernels.plan import DeviceProfile, PlanTable, format_table, read_table
from gatefuse_kernels.plan.table import Entry


class OutputError(RuntimeError):
    """The table cannot be written; the text names the file and the cause."""


def open_table(path: Path, device: DeviceProfile) -> PlanTable:
    """The table in `path`, or an empty one of this device if there is no such file.

    Raises:
        PlanTableError: the file cannot be read, is no table, or is of another device.
    """
    try:
        is_there = path.exists()
    except OSError as error:
        raise PlanTableError(f"{path}: {error.strerror or error}") from error
    if not is_there:
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
    """Write the file whole: whoever reads it meanwhile sees the old one or the new one.

    Raises:
        OutputError: it cannot be written.
    """
    with _told(path):
        partial = _partial(path)
        partial.write_text(format_table(table), encoding="utf-8")
        os.replace(partial, path)


def probe(path: Path) -> None:
    """Find out, before hours of measuring, whether `write_table` can write; changes no file.

    Raises:
        OutputError: it cannot.
    """
    with _told(path):
        partial = _partial(path)
        partial.write_text("", encoding="utf-8")
        partial.unlink()


def _partial(path: Path) -> Path:
    """The file beside `path` that takes its place when it is whole; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.with_name(f"{path.name}.partial")


@contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        cause = error.strerror or error
        raise OutputError(f"{path} cannot be written: {cause}") from error
