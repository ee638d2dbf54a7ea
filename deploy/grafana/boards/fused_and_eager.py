"""The same work fused, eager and compiled, side by side: what fusion buys."""

from __future__ import annotations

from deploy.grafana.boards.panels import Board, Panel, Query, Row
from deploy.grafana.boards.promql import MODEL, quantile, rate, ratio, share, total
from deploy.grafana.boards.rows.batching import PADDED, PADDING
from deploy.grafana.boards.rows.kernels import BUSY, COMPUTED, LAUNCHES, MODELLED
from deploy.grafana.boards.variables import BANDWIDTH, MODELS, NODES

INFERENCE = "gatefuse_inference_duration_seconds"
BATCHES = rate(COMPUTED, MODEL)
ROWS = rate("gatefuse_batch_rows_sum", MODEL)


def by_backend(above: str, below: str) -> tuple[Query, ...]:
    """One line for each backend."""
    return (Query(ratio("backend", above, below), "{{backend}}"),)


def quantile_by_backend(q: float) -> tuple[Query, ...]:
    """A quantile of the latency, one line for each backend."""
    return (Query(quantile(q, INFERENCE, MODEL, by="backend"), "{{backend}}"),)


CLIENTS = Row(
    "What clients gain",
    (
        Panel(
            "Latency, p50",
            "s",
            "From a request's acceptance until its rows are back: half take longer. Choose models with the same "
            "weights and load.",
            quantile_by_backend(0.5),
            logarithmic=True,
        ),
        Panel(
            "Latency, p99",
            "s",
            "From a request's acceptance until its rows are back: one in a hundred takes longer.",
            quantile_by_backend(0.99),
            logarithmic=True,
        ),
        Panel(
            "Rows per second",
            "rowsps",
            "Rows computed. A comparison needs about the same on each side.",
            (Query(total("backend", ROWS), "{{backend}}"),),
        ),
    ),
)

DEVICES = Row(
    "What devices do for it",
    (
        Panel(
            "Launches per batch",
            "short",
            "Kernels executed over batches: what fusion is about. A flat line at the number a backend is built for.",
            by_backend(rate(LAUNCHES, MODEL), BATCHES),
        ),
        Panel(
            "Launches per row",
            "short",
            "Kernels executed over rows. Falls as batches grow: one launch serves more rows.",
            by_backend(rate(LAUNCHES, MODEL), ROWS),
        ),
        Panel(
            "Bytes moved per row",
            "bytes",
            "Modelled memory traffic over rows: the least that the launched kernels must read and write.",
            by_backend(rate(MODELLED, MODEL), ROWS),
        ),
        Panel(
            "Device time per row",
            "s",
            "Seconds that the device was busy, over rows: the kernels and the copies, without queue or network.",
            by_backend(rate(BUSY, MODEL), ROWS),
        ),
        Panel(
            "Device time per batch",
            "s",
            "Seconds that the device was busy, over batches.",
            by_backend(rate(BUSY, MODEL), BATCHES),
        ),
        Panel(
            "Padding",
            "percentunit",
            PADDED,
            (Query(share("backend", rate(PADDING, MODEL), ROWS), "{{backend}}"),),
        ),
        Panel(
            "Achieved share of the bandwidth",
            "percentunit",
            "Modelled bytes per busy second over the bandwidth at the top of the page. A lower bound where tiles are "
            "read again; above 100 % where weights stay in a cache.",
            (
                Query(
                    f"{ratio('backend', rate(MODELLED, MODEL), rate(BUSY, MODEL))} / $bandwidth",
                    "{{backend}}",
                ),
            ),
        ),
        Panel(
            "Operations per byte",
            "short",
            "Modelled floating-point operations over modelled bytes. Left of the device's ridge the bandwidth is the "
            "roof, right of it the arithmetic.",
            by_backend(rate("gatefuse_flops_modelled_total", MODEL), rate(MODELLED, MODEL)),
        ),
    ),
)

FUSED_AND_EAGER = Board(
    uid="gatefuse-fused-and-eager",
    title="Gatefuse: fused against eager",
    description="Each backend's lines beside the others', for the chosen models.",
    variables=(NODES, MODELS, BANDWIDTH),
    rows=(CLIENTS, DEVICES),
)
