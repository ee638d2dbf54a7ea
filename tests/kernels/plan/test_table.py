"""Tables of measured plans: what is shipped, what is read, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gatefuse_kernels.errors import PlanTableError
from gatefuse_kernels.plan import KNOWN_DEVICES, format_table, parse_table, read_table
from gatefuse_kernels.plan.fitting import fits
from gatefuse_kernels.plan.shipped_tables import shipped_tables
from gatefuse_kernels.plan.table import Entry, PlanTable
from gatefuse_kernels.shapes import MAX_ROWS, DType, MlpShape

TILE = {"rows": 16, "columns": 64, "inner": 64, "warps": 4, "stages": 3, "swapped": True}
PAIR = {"algorithm": "two_launch", "gate_up": TILE, "down": TILE, "reason": "timed"}
ENTRY = {
    "shape": "64x96",
    "dtype": "bf16",
    "measured": {"date": "2026-11-29", "torch": "2.11", "triton": "3.6", "command": "tune"},
    "classes": [
        {"up_to": 16, "us": 3.5, "library_us": 4, **PAIR},
        {"us": 9, "algorithm": "library", "reason": "faster"},
    ],
    "deterministic": [{"up_to": 16, **PAIR}, PAIR],
}
TABLE = {
    "device": "NVIDIA Test",
    "capability": [9, 0],
    "multiprocessors": 8,
    "entries": [ENTRY],
}


def parse(raw: object) -> PlanTable:
    return parse_table(json.dumps(raw), "test.json")


def changed(raw: Any, path: tuple[str | int, ...], value: object) -> Any:
    """A deep copy with the value at `path` replaced, or removed if it is None."""
    copy = json.loads(json.dumps(raw))
    place = copy
    for key in path[:-1]:
        place = place[key]
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return copy


def test_what_is_read() -> None:
    table = parse(TABLE)
    [entry] = table.entries
    assert (table.device, table.capability, table.multiprocessors) == ("NVIDIA Test", (9, 0), 8)
    assert (entry.shape, entry.dtype) == (MlpShape(64, 96), DType.BF16)
    first, last = entry.classes
    assert (first.up_to, first.us, first.library_us) == (16, 3.5, 4)
    assert (last.up_to, last.us, last.library_us) == (MAX_ROWS, 9, None)
    assert [plan.algorithm for plan in entry.plans] == [
        "two_launch",
        "library",
        *["two_launch"] * 2,
    ]
    assert entry.deterministic is not None
    assert entry.deterministic.limits == (16, MAX_ROWS)
    assert entry.row_plans().at(17).reason == "faster"


def test_the_text_is_read_back() -> None:
    table = parse(TABLE)
    text = format_table(table)
    assert parse_table(text, "again").entries == table.entries
    assert format_table(parse_table(text, "again")) == text


@pytest.mark.parametrize("table", shipped_tables(), ids=lambda table: table.device)
def test_shipped_tables_are_legal_on_their_device(table: PlanTable) -> None:
    [device] = [device for device in KNOWN_DEVICES.values() if table.is_of(device)]
    assert table.capability == device.capability
    for entry in table.entries:
        assert entry.deterministic is not None
        assert all(fits(plan, entry.dtype, device) for plan in entry.plans)


CLASSES = ("entries", 0, "classes")


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        (("device",), None, "test.json: device is missing"),
        (("capability",), [9], "test.json: "),
        (("capability",), [9, 0, 0], "test.json: capability must be two integers, got [9, 0, 0]"),
        (("capability",), [9, 0.5], "test.json: capability must be two integers"),
        (("capability",), [True, 0], "test.json: capability must be two integers"),
        (("multiprocessors",), 0, "test.json: multiprocessors must be at least 1, got 0"),
        (("multiprocessors",), "8", "test.json: multiprocessors must not be '8'"),
        (("entries",), [ENTRY, ENTRY], "test.json: 64x96 bf16 has two entries"),
        (("entries",), ["x"], "test.json: must be an object, got 'x'"),
        (("tables",), [], "test.json: unknown key tables"),
        (("entries", 0, "shape"), "64", "64 bf16: a shape reads"),
        (("entries", 0, "dtype"), "fp8", "64x96 fp8: 'fp8' is not a valid DType"),
        (("entries", 0, "measured", "date"), None, "64x96 bf16: measured: date is missing"),
        ((*CLASSES, 0, "up_to"), None, "64x96 bf16: row limits"),
        ((*CLASSES, 1, "up_to"), 8, "64x96 bf16: row limits"),
        ((*CLASSES, 0, "us"), True, "64x96 bf16: up to 16 rows: us must not be True"),
        ((*CLASSES, 0, "us"), 0, "64x96 bf16: up to 16 rows: us must be positive and finite"),
        ((*CLASSES, 0, "us"), float("nan"), "up to 16 rows: us must be positive and finite"),
        ((*CLASSES, 0, "library_us"), float("inf"), "library_us must be positive and finite"),
        ((*CLASSES, 0, "algorithm"), "magic", "up to 16 rows: 'magic' is not a valid Algorithm"),
        ((*CLASSES, 0, "down"), None, "up to 16 rows: a two_launch plan needs a tile for down"),
        ((*CLASSES, 1, "down"), TILE, "a library plan has no use for a tile for down"),
        ((*CLASSES, 0, "reason"), None, "up to 16 rows: reason is missing"),
        ((*CLASSES, 0, "gate_up", "rows"), None, "up to 16 rows: gate_up: rows is missing"),
        ((*CLASSES, 0, "gate_up", "rows"), 17, "gate_up: a tile's rows must be a power of two"),
        ((*CLASSES, 0, "gate_up", "rows"), 512, "gate_up: a tile's rows must be at most 256"),
        ((*CLASSES, 0, "gate_up", "columns"), 8, "gate_up: a tile for the matrix units"),
        ((*CLASSES, 0, "gate_up", "group"), 65, "gate_up: a tile's group must be at most 64"),
        ((*CLASSES, 0, "gate_up", "warps"), 64, "gate_up: a tile's warps must be at most 32"),
        (
            (*CLASSES, 0, "gate_up"),
            {**TILE, "descriptors": True, "inner": 512},
            "gate_up: a tile through descriptors has an inner of at most 256",
        ),
        (
            (*CLASSES, 0, "down"),
            {**TILE, "swapped": True, "descriptors": True, "share_tail": True},
            "up to 16 rows: down shares out no tiles",
        ),
        (
            (*CLASSES, 0, "gate_up"),
            {**TILE, "columns": 120, "swapped": False, "descriptors": True, "specialized": True},
            "gate_up: a specialized tile's columns must be at most 208, and the sum of at most 3",
        ),
        ((*CLASSES, 0, "gate_up", "swapped"), 1, "gate_up: swapped must not be 1"),
        ((*CLASSES, 0, "gate_up", "colour"), 1, "gate_up: unknown key colour"),
        (
            ("entries", 0, "deterministic", 1, "gate_up"),
            {**TILE, "swapped": True, "descriptors": True, "share_tail": True},
            "a deterministic plan has no tiles that are streamed or shared out",
        ),
        ((*CLASSES, 0, "overlap"), "soon", "'soon' is not a valid Overlap"),
        ((*CLASSES, 1, "overlap"), "early", "a library plan has nothing to overlap"),
        (
            ("entries", 0, "deterministic", 1),
            {"algorithm": "library", "reason": "x"},
            "64x96 bf16: a deterministic plan is a two_launch plan, not library",
        ),
        (("entries", 0, "deterministic"), PAIR, "64x96 bf16: deterministic must not be {"),
        (
            ("entries", 0, "deterministic"),
            [],
            "64x96 bf16: deterministic: row limits () must end at ",
        ),
        (
            ("entries", 0, "deterministic", 1, "down", "splits"),
            3,
            "64x96 bf16: deterministic plans add up in one order, but that up to",
        ),
        (
            ("entries", 0, "deterministic", 0, "down", "colour"),
            3,
            "deterministic: up to 16 rows: down: unknown key colour",
        ),
    ],
    ids=lambda value: ".".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_a_broken_table_is_told_with_its_place(
    path: tuple[str | int, ...], value: object, text: str
) -> None:
    with pytest.raises(PlanTableError) as caught:
        parse(changed(TABLE, path, value))
    assert str(caught.value).startswith("test.json: ")
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{", "not JSON"),
        ("1" * 5000, "not JSON"),
        ("[" * 100_000, "nested too deeply"),
    ],
    ids=["open", "long number", "deep"],
)
def test_not_json(text: str, fault: str) -> None:
    with pytest.raises(PlanTableError, match=rf"test\.json: {fault}"):
        parse_table(text, "test.json")


def test_a_path_that_is_none() -> None:
    with pytest.raises(PlanTableError, match="null"):
        read_table(Path("a\0b"))


def test_float32_has_no_descriptors() -> None:
    """The matrix units take no float32; nobody tried the copy engine without them."""
    table = changed(TABLE, ("entries", 0, "dtype"), "fp32")
    assert parse(table).entries[0].dtype is DType.FP32
    described = changed(table, (*CLASSES, 0, "down"), {**TILE, "descriptors": True})
    with pytest.raises(PlanTableError, match="64x96 fp32: fp32 has no tiles through descriptors"):
        parse(described)


def test_an_entry_is_found_by_shape_and_type() -> None:
    table = parse(TABLE)
    assert isinstance(table.entry(MlpShape(64, 96), DType.BF16), Entry)
    assert table.entry(MlpShape(64, 96), DType.FP16) is None
    assert table.entry(MlpShape(96, 64), DType.BF16) is None
