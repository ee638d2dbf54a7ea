"""A run over chains as text and as JSON. Pure: no torch here."""

from dataclasses import asdict
from typing import Any

from gatefuse_kernels.bench.cases import Verdict
from gatefuse_kernels.bench.cells import (
    NOTHING,
    held_lines,
    mark,
    number,
    range_of,
    table,
    verdict_json,
)
from gatefuse_kernels.bench.chains.cases import COLUMNS
from gatefuse_kernels.bench.chains.results import COMPILED, EAGER, FUSED, ChainReport, ChainResult
from gatefuse_kernels.bench.results import State

_COLUMNS = (
    "chain",
    "dtype",
    "ops",
    "passes",
    "us",
    "p10-p90",
    "TB/s",
    "copy us",
    "of copy",
    "",
    "compile us",
    "x compile",
    "",
    "eager us",
    "passes",
    "gain",
    "",
    "x shorter",
    "",
    "error",
)


def text(report: ChainReport) -> str:
    """The chains, the table, then what holds for all and what is not well."""
    chains = {result.chain.name: result.chain.text for result in report.results}
    parts = [
        "\n".join(f"{name}: {value}" for name, value in report.facts.items()),
        "\n".join(f"{name}: {chain}" for name, chain in chains.items()),
        _results_text(report),
        "\n".join(_summary(report)),
    ]
    return "\n\n".join(part for part in parts if part)


def json_of(report: ChainReport) -> dict[str, Any]:
    """Everything in the report, and the verdicts, as JSON can hold it."""
    fields = asdict(report)
    for result, plain in zip(report.results, fields["results"], strict=True):
        plain["columns"] = COLUMNS
        plain["copy_share"] = result.copy_share
        plain["tb_per_s"] = result.tb_per_s
        plain["verdicts"] = [verdict_json(verdict) for verdict in result.verdicts]
    fields["problems"] = list(report.problems)
    return fields


def _results_text(report: ChainReport) -> str:
    if not report.results:
        return ""
    elements = report.results[0].rows * COLUMNS
    head = f"{elements:,} elements in each tensor, one launch a chain; us of a CUDA-graph replay"
    return head + "\n" + table([_COLUMNS, *map(_cells, report.results)])


def _cells(result: ChainResult) -> tuple[str, ...]:
    by_line = {verdict.line: verdict for verdict in result.verdicts}
    ours, peers = result.ours.time.median_us, result.peers_us
    shorter = result.shorter
    return (
        result.chain.name,
        result.dtype.value,
        str(result.ops),
        str(result.traffic[FUSED].passes),
        number(ours),
        range_of(result.ours.time),
        f"{result.tb_per_s:.2f}",
        number(result.copy_us),
        f"{result.copy_share:.3f}",
        _mark(by_line.get("copy bandwidth")),
        _peer_us(result, COMPILED),
        f"{ours / peers[COMPILED]:.3f}" if COMPILED in peers else NOTHING,
        _mark(by_line.get("torch.compile")),
        _peer_us(result, EAGER),
        str(result.traffic[EAGER].passes),
        f"{peers[EAGER] / ours:.2f}" if EAGER in peers else NOTHING,
        _mark(by_line.get("gain on eager")),
        f"{ours / shorter.median_us:.3f}" if shorter else NOTHING,
        _mark(by_line.get("shorter chain")),
        f"{result.ours.error:.1e}",
    )


def _peer_us(result: ChainResult, name: str) -> str:
    peer = result.peers[name]
    if peer.measured is None or peer.state is not State.OK:
        return peer.state.value
    return number(peer.measured.time.median_us)


def _mark(verdict: Verdict | None) -> str:
    return "" if verdict is None else mark(verdict)


def _summary(report: ChainReport) -> list[str]:
    held: dict[str, list[tuple[str, Verdict]]] = {}
    for result in report.results:
        for verdict in result.verdicts:
            held.setdefault(verdict.line, []).append((result.title, verdict))
    lines = held_lines(held)
    if report.launches:
        equal = sum(each.counted == each.profiled for each in report.launches)
        lines.append(f"launches counted and profiled: {equal} of {len(report.launches)} equal")
    lines += [
        f"{result.title}, {name}: {peer.state.value}, {peer.reason}"
        for result in report.results
        for name, peer in result.peers.items()
        if peer.state is not State.OK
    ]
    lines += [f"PROBLEM: {problem}" for problem in report.problems]
    lines += [f"not measured for want of time: {what}" for what in report.not_measured]
    return lines
