"""How rows wait and travel together, and who computes them."""

from __future__ import annotations

from deploy.grafana.boards.panels import Panel, Query, Row
from deploy.grafana.boards.promql import (
    MODEL,
    buckets,
    increase,
    quantile,
    rate,
    ratio,
    selected,
    share,
    total,
)

PADDING = "gatefuse_batch_padding_rows_total"
PADDED = (
    "Rows of zeros that were computed to reach a compiled or captured size, over all rows computed."
)

BATCHING = Row(
    "Batching",
    (
        Panel(
            "How full is the queue",
            "percentunit",
            "Waiting rows over the rows that may wait. At 100 % the next request is refused with RESOURCE_EXHAUSTED.",
            (
                Query(
                    ratio(
                        "instance, model",
                        selected("gatefuse_queue_rows", MODEL),
                        selected("gatefuse_queue_capacity_rows", MODEL),
                    ),
                    "{{instance}} {{model}}",
                ),
            ),
            maximum=1,
        ),
        Panel(
            "Wait in the queue, p99",
            "s",
            "From a request's admission until its batch is sealed.",
            (Query(quantile(0.99, "gatefuse_queue_wait_seconds", MODEL, by="model"), "{{model}}"),),
            logarithmic=True,
        ),
        Panel(
            "Why batches were sealed",
            "ops",
            "Batches per second by what closed them.",
            (Query(total("trigger", rate("gatefuse_batches_total")), "{{trigger}}"),),
            stacked=True,
        ),
        Panel(
            "Rows per batch",
            "short",
            "How many rows went to a device together, of the chosen models. Under load it climbs towards "
            "max_batch_rows: batches grow while every worker is busy.",
            (Query(buckets("gatefuse_batch_rows", MODEL), "{{le}}"),),
            kind="heatmap",
        ),
        Panel(
            "Requests per batch",
            "short",
            "How many requests, or pieces of large ones, shared a batch, on average.",
            (
                Query(
                    ratio(
                        "model",
                        rate("gatefuse_batch_requests_sum", MODEL),
                        rate("gatefuse_batch_requests_count", MODEL),
                    ),
                    "{{model}}",
                ),
            ),
        ),
        Panel(
            "Padding",
            "percentunit",
            PADDED,
            (
                Query(
                    share("model", rate(PADDING, MODEL), rate("gatefuse_batch_rows_sum", MODEL)),
                    "{{model}}",
                ),
            ),
        ),
    ),
)

REPLICAS = Row(
    "Replicas",
    (
        Panel(
            "Replicas by state",
            "short",
            "Workers by what they are doing. Only ready ones are given batches.",
            (Query(total("state", selected("gatefuse_replicas")), "{{state}}"),),
            stacked=True,
        ),
        Panel(
            "Restarts",
            "short",
            "Workers replaced, by cause. Their requests were run again elsewhere.",
            (Query(total("cause", increase("gatefuse_replica_restarts_total")), "{{cause}}"),),
        ),
        Panel(
            "Requests in flight",
            "short",
            "Calls that started and have not finished, by method.",
            (
                Query(
                    f"{total('method', selected('gatefuse_requests_in_flight'))} > 0", "{{method}}"
                ),
            ),
            stacked=True,
        ),
        Panel(
            "Batches that did not come back",
            "ops",
            "Calls of a worker that ended without rows, by how: expired, failed, its process died, or timed out.",
            (
                Query(
                    total("outcome", rate("gatefuse_replica_call_seconds_count", 'outcome!="ok"')),
                    "{{outcome}}",
                ),
            ),
            stacked=True,
        ),
        Panel(
            "One batch at a worker",
            "s",
            "From sending a batch until its rows are back, as the frontend sees it.",
            tuple(
                Query(quantile(q, "gatefuse_replica_call_seconds", 'outcome="ok"'), name)
                for q, name in ((0.5, "p50"), (0.99, "p99"))
            ),
        ),
        Panel(
            "Of that, the hop",
            "s",
            "The call's time less the worker's own: sockets and wake-ups between the two processes.",
            tuple(
                Query(quantile(q, "gatefuse_replica_overhead_seconds"), name)
                for q, name in ((0.5, "p50"), (0.99, "p99"))
            ),
        ),
        Panel(
            "Bytes moved by the service's own copies",
            "Bps",
            "By hop: from the message into the arena, to the device, and back. Counted at the copies.",
            (Query(total("hop", rate("gatefuse_transfer_bytes_total")), "{{hop}}"),),
        ),
    ),
)
