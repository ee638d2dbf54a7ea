"""What the devices executed, and what that moved."""

from __future__ import annotations

from deploy.grafana.boards.panels import Panel, Query, Row
from deploy.grafana.boards.promql import MODEL, quantile, rate, ratio, selected, total

LAUNCHES = "gatefuse_kernel_launches_total"
MODELLED = "gatefuse_dram_bytes_modelled_total"
BUSY = "gatefuse_device_busy_seconds_total"
# Unlike `gatefuse_batch_rows_count` it has no batch that was sent and not computed.
COMPUTED = "gatefuse_device_batch_seconds_count"

KERNELS = Row(
    "Kernels",
    (
        Panel(
            "Kernel launches per second",
            "ops",
            "Kernels that ran, by kernel and by how they were launched: one by one (eager), or as part of a CUDA "
            "graph's replay.",
            (Query(total("kernel, mode", rate(LAUNCHES, MODEL)), "{{kernel}} {{mode}}"),),
            stacked=True,
        ),
        Panel(
            "Launches per batch",
            "short",
            "Kernels that ran over batches computed: a flat line at the number that a backend is built for.",
            (
                Query(
                    ratio("model, backend", rate(LAUNCHES, MODEL), rate(COMPUTED, MODEL)),
                    "{{model}} {{backend}}",
                ),
            ),
        ),
        Panel(
            "Launched one by one",
            "percentunit",
            "Share of the launches that were no part of a graph. Near 0 on a GPU for models with CUDA graphs, 1 for "
            "all others and on a CPU.",
            (
                Query(
                    ratio("model", rate(LAUNCHES, MODEL, 'mode="eager"'), rate(LAUNCHES, MODEL)),
                    "{{model}}",
                ),
            ),
            maximum=1,
        ),
        Panel(
            "Graph replays, by row bucket",
            "ops",
            "CUDA graphs launched per second, by the number of rows they were captured for. Absent on a CPU.",
            (
                Query(
                    total("bucket", rate("gatefuse_graph_replays_total", MODEL)), "{{bucket}} rows"
                ),
            ),
            stacked=True,
        ),
        Panel(
            "Achieved bandwidth against the roof",
            "Bps",
            "Modelled bytes over the seconds that the device was busy: compulsory traffic only, so a lower bound. The "
            "roof is the number at the top of the page.",
            (
                Query(ratio("model", rate(MODELLED, MODEL), rate(BUSY, MODEL)), "{{model}}"),
                Query("vector($bandwidth)", "roof"),
            ),
            logarithmic=True,
        ),
        Panel(
            "Operations per busy second",
            "flops",
            "Modelled floating-point operations over the seconds that the device was busy.",
            (
                Query(
                    ratio(
                        "model",
                        rate("gatefuse_flops_modelled_total", MODEL),
                        rate(BUSY, MODEL),
                    ),
                    "{{model}}",
                ),
            ),
        ),
        Panel(
            "Device time of a batch, p99",
            "s",
            "The kernels and the copies of one batch, without queue or network, by the smallest of 1, 4, 16, 64, … "
            "that holds the rows computed, padding included.",
            (
                Query(
                    quantile(0.99, "gatefuse_device_batch_seconds", MODEL, by="bucket"),
                    "up to {{bucket}} rows",
                ),
            ),
        ),
        Panel(
            "Are the counters right",
            "percentunit",
            "What `gatefuse audit` measured over what was counted. Launches must be exactly 100 %. Absent where the "
            "service was started without an audit's result.",
            (Query(f"min by (check) ({selected('gatefuse_counter_audit_ratio')})", "{{check}}"),),
            kind="stat",
            minimum=None,
        ),
    ),
)
