"""A table of measured plans as text: JSON with one line per class of row counts."""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, cast

from gatefuse_kernels.errors import PlanTableError
from gatefuse_kernels.plan.algorithm import Algorithm, Overlap, Plan
from gatefuse_kernels.plan.row_plans import RowPlans
from gatefuse_kernels.plan.table import Entry, MeasuredClass, Measurement, PlanTable
from gatefuse_kernels.shapes import MAX_ROWS, DType, parse_shape
from gatefuse_kernels.tile import Tile


def parse_table(text: str, source: str) -> PlanTable:
    """Read a table; `source` is what an error calls it.

    Raises:
        PlanTableError: it is not a valid table; the text names the entry.
    """
    try:
        return _table(json.loads(text), source)
    except PlanTableError:
        raise
    except ValueError as error:
        raise PlanTableError(f"{source}: not JSON: {error}") from error
    except RecursionError as error:
        raise PlanTableError(f"{source}: nested too deeply") from error


def _table(raw: object, source: str) -> PlanTable:
    with _Object.opened(raw, source) as table:
        return PlanTable(
            device=table.take("device", str),
            capability=_capability(table.take("capability", list)),
            multiprocessors=table.take("multiprocessors", int),
            entries=tuple(_entry(item, source) for item in table.take("entries", list)),
        )


def read_table(path: Path) -> PlanTable:
    """Read a table from a file of one's own.

    Raises:
        PlanTableError: the file cannot be read, or is not a valid table.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise PlanTableError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise PlanTableError(f"{path}: not UTF-8: {error}") from error
    except ValueError as error:  # a NUL in the path
        raise PlanTableError(f"{str(path)!r}: {error}") from error
    return parse_table(text, str(path))


def format_table(table: PlanTable) -> str:
    """The text that `parse_table` reads back to the same table."""
    entries = ",\n".join(_entry_text(entry) for entry in table.entries)
    return (
        "{\n"
        f'  "device": {json.dumps(table.device)},\n'
        f'  "capability": {json.dumps(table.capability)},\n'
        f'  "multiprocessors": {table.multiprocessors},\n'
        f'  "entries": [\n{entries}\n  ]\n'
        "}\n"
    )


class _Object:
    """A JSON object whose keys are taken one by one; an error says where it is."""

    def __init__(self, raw: object, place: str) -> None:
        self.place = place
        if not isinstance(raw, dict):
            raise PlanTableError(f"{place}: must be an object, got {raw!r}")
        self._left: dict[str, Any] = dict(raw)

    @classmethod
    @contextmanager
    def opened(cls, raw: object, place: str) -> Iterator["_Object"]:
        """Take an object apart; nothing may be left, and what its values break is told."""
        taken = cls(raw, place)
        try:
            yield taken
        except PlanTableError:
            raise
        except (TypeError, ValueError) as error:
            raise PlanTableError(f"{taken.place}: {error}") from error
        if taken._left:
            raise PlanTableError(f"{taken.place}: unknown key {', '.join(sorted(taken._left))}")

    def take(self, key: str, *kinds: type, default: Any = MISSING) -> Any:
        """The value of `key`, of one of `kinds`."""
        value = self._left.pop(key, default)
        if value is MISSING:
            raise PlanTableError(f"{self.place}: {key} is missing")
        # bool is a kind of int to Python, and an int is a float to JSON.
        if value is not default and type(value) not in kinds:
            raise PlanTableError(f"{self.place}: {key} must not be {value!r}")
        return value


def _capability(given: list[object]) -> tuple[int, int]:
    match given:
        case [int(major), int(minor)] if bool not in (type(major), type(minor)):
            return major, minor
    raise ValueError(f"capability must be two integers, got {given!r}")


def _entry(raw: object, source: str) -> Entry:
    with _Object.opened(raw, source) as entry:
        shape, dtype = entry.take("shape", str), entry.take("dtype", str)
        entry.place = f"{source}: {shape} {dtype}"
        alike = entry.take("deterministic", list, default=None)
        with _Object.opened(entry.take("measured", dict), f"{entry.place}: measured") as measured:
            measurement = Measurement(
                **{field.name: measured.take(field.name, str) for field in fields(Measurement)}
            )
        return Entry(
            shape=parse_shape(shape),
            dtype=DType(dtype),
            measured=measurement,
            classes=tuple(_class(item, entry.place) for item in entry.take("classes", list)),
            deterministic=None
            if alike is None
            else _deterministic(alike, f"{entry.place}: deterministic"),
        )


def _class(raw: object, place: str) -> MeasuredClass:
    with _Object.opened(raw, place) as measured:
        return MeasuredClass(
            up_to=_limit(measured),
            us=measured.take("us", int, float, default=None),
            library_us=measured.take("library_us", int, float, default=None),
            plan=_plan(measured),
        )


def _limit(source: _Object) -> int:
    """The largest row count of a class; errors in it are told with that."""
    # The last class has no end; everything a plan is chosen for has.
    up_to: int = source.take("up_to", int, default=MAX_ROWS)
    source.place = f"{source.place}: up to {up_to} rows"
    return up_to


def _deterministic(raw: list[object], place: str) -> RowPlans:
    limits, plans = [], []
    for item in raw:
        with _Object.opened(item, place) as one:
            limits.append(_limit(one))
            plans.append(_plan(one))
    try:
        return RowPlans(tuple(limits), tuple(plans))
    except ValueError as error:
        raise PlanTableError(f"{place}: {error}") from error


def _plan(source: _Object) -> Plan:
    return Plan(
        algorithm=Algorithm(source.take("algorithm", str)),
        gate_up=_tile(source, "gate_up"),
        down=_tile(source, "down"),
        reason=source.take("reason", str),
        overlap=Overlap(source.take("overlap", str, default=Overlap.NONE.value)),
    )


def _tile(source: _Object, name: str) -> Tile | None:
    raw = source.take(name, dict, default=None)
    if raw is None:
        return None
    with _Object.opened(raw, f"{source.place}: {name}") as tile:
        return Tile(
            **{
                field.name: tile.take(field.name, cast("type", field.type), default=field.default)
                for field in fields(Tile)
            }
        )


def _entry_text(entry: Entry) -> str:
    measured = {field.name: getattr(entry.measured, field.name) for field in fields(Measurement)}
    lines = [
        f'      "shape": {json.dumps(str(entry.shape))}',
        f'      "dtype": {json.dumps(entry.dtype.value)}',
        f'      "measured": {json.dumps(measured)}',
        _list_text("classes", map(_class_json, entry.classes)),
    ]
    if entry.deterministic is not None:
        alike = map(_limited_json, entry.deterministic.limits, entry.deterministic.plans)
        lines.append(_list_text("deterministic", alike))
    return "    {\n" + ",\n".join(lines) + "\n    }"


def _list_text(name: str, items: Iterable[dict[str, object]]) -> str:
    """A list with one line per class of row counts."""
    lines = ",\n".join(f"        {json.dumps(item)}" for item in items)
    return f"      {json.dumps(name)}: [\n{lines}\n      ]"


def _limit_json(up_to: int) -> dict[str, object]:
    return {} if up_to == MAX_ROWS else {"up_to": up_to}


def _limited_json(up_to: int, plan: Plan) -> dict[str, object]:
    return _limit_json(up_to) | _plan_json(plan)


def _class_json(measured: MeasuredClass) -> dict[str, object]:
    head = _limit_json(measured.up_to)
    for name in ("us", "library_us"):
        value = getattr(measured, name)
        if value is not None:
            head[name] = value
    return head | _plan_json(measured.plan)


def _plan_json(plan: Plan) -> dict[str, object]:
    tiles = {
        name: _tile_json(tile)
        for name, tile in (("gate_up", plan.gate_up), ("down", plan.down))
        if tile is not None
    }
    overlap = {} if plan.overlap is Overlap.NONE else {"overlap": plan.overlap.value}
    return {"algorithm": plan.algorithm.value, **tiles, **overlap, "reason": plan.reason}


def _tile_json(tile: Tile) -> dict[str, object]:
    """Its fields without those that say what they say by default."""
    return {
        field.name: getattr(tile, field.name)
        for field in fields(Tile)
        if getattr(tile, field.name) != field.default
    }
