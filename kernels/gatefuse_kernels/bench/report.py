"""A run as text and as JSON. Pure: no torch here."""

from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

from gatefuse_kernels.bench.cases import Verdict, fastest
from gatefuse_kernels.bench.cells import (
    NOTHING,
    held_lines,
    mark,
    number,
    range_of,
    table,
    verdict_cells,
    verdict_json,
)
from gatefuse_kernels.bench.results import (
    GateResult,
    Invariance,
    PeerResult,
    Point,
    Report,
    State,
)
from gatefuse_kernels.shapes import MlpShape

_POINT_COLUMNS = (
    "rows",
    "ours us",
    "p10-p90",
    "launches",
    "read us",
    "x read",
    "limit",
    "",
    "fastest peer",
    "us",
    "x peer",
    "limit",
    "",
    "host us",
    "",
    "error",
)


def text(report: Report) -> str:
    """Tables of every shape, then what holds for all, then what is not well."""
    by_shape = groupby(report.points, key=lambda point: point.shape)
    parts = [
        "\n".join(f"{name}: {value}" for name, value in report.facts.items()),
        *(_shape_text(report, shape, list(own)) for shape, own in by_shape),
        _gate_text(report.gates),
        "\n".join(map(_invariance_line, report.invariance)),
        "\n".join(_summary(report)),
    ]
    return "\n\n".join(part for part in parts if part)


def json_of(report: Report) -> dict[str, Any]:
    """Everything in the report, and the verdicts, as JSON can hold it."""
    fields = asdict(report)
    for point, plain in zip(report.points, fields["points"], strict=True):
        plain["shape"] = str(point.shape)
        plain["verdicts"] = [verdict_json(verdict) for verdict in point.verdicts]
    for floor, plain in zip(report.floors, fields["floors"], strict=True):
        plain["shape"] = str(floor.shape)
        plain["read_tb_per_s"] = floor.read_tb_per_s
        plain["copy_tb_per_s"] = floor.copy_tb_per_s
    for gate, plain in zip(report.gates, fields["gates"], strict=True):
        plain["verdicts"] = [verdict_json(gate.verdict)]
    for found, plain in zip(report.invariance, fields["invariance"], strict=True):
        plain["shape"] = str(found.shape)
    fields["problems"] = list(report.problems)
    return fields


def _shape_text(report: Report, shape: MlpShape, points: list[Point]) -> str:
    floors = [floor for floor in report.floors if floor.shape == shape]
    heads = [
        f"{shape}: one launch reads {floor.read_bytes / 1e6:.1f} MB at {floor.read_tb_per_s:.2f} "
        f"TB/s ({floor.reader}); a copy moves {floor.copy_tb_per_s:.2f} TB/s"
        for floor in floors
    ]
    tables = [table([_POINT_COLUMNS, *map(_point_cells, points)])]
    if points[0].peers:
        tables.append(table([("rows", *points[0].peers), *map(_peer_cells, points)]))
    if points[0].deterministic is not None:
        columns = ("rows", "deterministic us", "p10-p90", "launches", "x default", "limit", "")
        tables.append(table([columns, *map(_deterministic_cells, points)]))
    return "\n".join(heads) + "\n" + "\n\n".join(tables)


def _point_cells(point: Point) -> tuple[str, ...]:
    by_line = {verdict.line: verdict for verdict in point.verdicts}
    ours, peers_us = point.ours, point.peers_us
    best = fastest(peers_us)
    floor_cells = verdict_cells(by_line.get("read floor"))
    if floor_cells[0] == NOTHING:
        floor_cells = (f"{ours.time.median_us / point.floor.median_us:.3f}", *floor_cells[1:])
    return (
        str(point.rows),
        number(ours.time.median_us),
        range_of(ours.time),
        str(ours.launches),
        number(point.floor.median_us),
        *floor_cells,
        best or NOTHING,
        number(peers_us[best]) if best else NOTHING,
        *verdict_cells(by_line.get("fastest peer")),
        number(point.host.median_us),
        mark(by_line["host time"]),
        f"{ours.error:.1e}",
    )


def _peer_cells(point: Point) -> tuple[str, ...]:
    return (str(point.rows), *map(_peer_cell, point.peers.values()))


def _peer_cell(peer: PeerResult) -> str:
    if peer.measured is None or peer.state is not State.OK:
        return peer.state.value
    return f"{number(peer.measured.time.median_us)} ({peer.measured.launches})"


def _deterministic_cells(point: Point) -> tuple[str, ...]:
    measured = point.deterministic
    if measured is None:
        return (str(point.rows), *[NOTHING] * 6)
    ratio = measured.time.median_us / point.ours.time.median_us
    verdict = next((each for each in point.verdicts if each.line == "deterministic"), None)
    return (
        str(point.rows),
        number(measured.time.median_us),
        range_of(measured.time),
        str(measured.launches),
        f"{ratio:.3f}",
        *verdict_cells(verdict)[1:],
    )


def _gate_text(gates: Sequence[GateResult]) -> str:
    if not gates:
        return ""
    columns = ("gate silu(g)*u", "elements", "us", "copy us", "x copy", "limit", "", "error")
    rows = [
        (
            gate.dtype,
            f"{gate.elements:,}",
            number(gate.gate.median_us),
            number(gate.copy.median_us),
            *verdict_cells(gate.verdict),
            f"{gate.error:.1e}",
        )
        for gate in gates
    ]
    return table([columns, *rows])


def _invariance_line(found: Invariance) -> str:
    return (
        f"{found.shape}, deterministic: {found.compositions} random batches of up to "
        f"{found.largest_rows} rows: {found.different_rows} of {found.rows} rows differ in bits"
    )


def _summary(report: Report) -> list[str]:
    held: dict[str, list[tuple[str, Verdict]]] = {}
    for point in report.points:
        for verdict in point.verdicts:
            held.setdefault(verdict.line, []).append((f"{point.shape}/{point.rows}", verdict))
    for gate in report.gates:
        held.setdefault(gate.verdict.line, []).append((gate.dtype, gate.verdict))
    lines = held_lines(held)
    lines += [f"PROBLEM: {problem}" for problem in report.problems]
    lines += [f"not measured for want of time: {what}" for what in report.not_measured]
    return lines
