"""What clients see, and why some were refused."""

from __future__ import annotations

from deploy.grafana.boards.panels import Panel, Query, Row
from deploy.grafana.boards.promql import INFER, MODEL, UNLOADED, quantile, rate, ratio, total

DURATION = "gatefuse_request_duration_seconds"
ANSWERED = (INFER, 'outcome="ok"')
FAULTS = 'code=~"INTERNAL|UNKNOWN|UNAVAILABLE|DATA_LOSS|DEADLINE_EXCEEDED"'
# As recordings.yml computes it for the alerts, but of the chosen nodes.
SUCCESS = (
    f"1 - clamp_min({total('', rate('gatefuse_requests_total', INFER, FAULTS))}"
    f" - {total('', rate('gatefuse_requests_shed_total', INFER, UNLOADED))}, 0)"
    f" / ({total('', rate('gatefuse_requests_total', INFER))} > 0)"
)

ARE_USERS_FINE = Row(
    "Are users fine",
    (
        Panel(
            "Success ratio",
            "percentunit",
            "Calls that did not end by the server's fault, over all that ended. Faults are INTERNAL, UNKNOWN, "
            "UNAVAILABLE, DATA_LOSS and DEADLINE_EXCEEDED, but not calls to a model that was unloaded. The objective "
            "is 99.9 %.",
            (Query(SUCCESS, "success"),),
            kind="stat",
            minimum=None,
            limits=(0.999, 0.99),
        ),
        Panel(
            "Answered within 50 ms",
            "percentunit",
            "Share of the answered calls that took at most 50 ms in the server. The bound is a bucket's edge, so the "
            "share is exact. The objective is 99 %.",
            (
                Query(
                    ratio(
                        "",
                        rate(f"{DURATION}_bucket", *ANSWERED, 'le="0.05"'),
                        rate(f"{DURATION}_count", *ANSWERED),
                    ),
                    "within 50 ms",
                ),
            ),
            kind="stat",
            limits=(0.99, 0.9),
        ),
        Panel(
            "Requests per second, by status",
            "reqps",
            "Finished inference calls, those of streams included, by gRPC status code.",
            (Query(f"{total('code', rate('gatefuse_requests_total', INFER))} > 0", "{{code}}"),),
            stacked=True,
        ),
        Panel(
            "Rows per second",
            "rowsps",
            "Rows computed, by model. A request carries one row or many, so this is the measure of work.",
            (Query(total("model", rate("gatefuse_batch_rows_sum", MODEL)), "{{model}}"),),
            stacked=True,
        ),
        Panel(
            "Latency of answered requests",
            "s",
            "Time in the server of calls that were answered OK, of all models: from the request's arrival until its "
            "answer is handed to gRPC. The network is not in it.",
            tuple(
                Query(quantile(q, DURATION, *ANSWERED), name)
                for q, name in ((0.5, "p50"), (0.9, "p90"), (0.99, "p99"))
            ),
            logarithmic=True,
        ),
        Panel(
            "Latency by model, p99",
            "s",
            "From a request's acceptance until its rows are back, of each model: the slowest hundredth takes longer. "
            "Reading a request and writing its answer are not in it.",
            (
                Query(
                    quantile(0.99, "gatefuse_inference_duration_seconds", MODEL, by="model"),
                    "{{model}}",
                ),
            ),
            logarithmic=True,
        ),
    ),
)

WHY_REFUSED = Row(
    "Why refused",
    (
        Panel(
            "Shed, by reason",
            "reqps",
            "Inference calls refused or given up for a reason that passes: a queue was full, a deadline had passed, "
            "the server was draining, no worker was ready, or the model was unloaded. Only those past their deadline "
            "may have been computed.",
            (Query(total("reason", rate("gatefuse_requests_shed_total", INFER)), "{{reason}}"),),
            stacked=True,
        ),
        Panel(
            "Invalid, by reason",
            "reqps",
            "Requests that break a rule of the interface. The client is told which; trying again does not help.",
            (Query(total("reason", rate("gatefuse_requests_invalid_total")), "{{reason}}"),),
            stacked=True,
        ),
        Panel(
            "Cancelled, by phase",
            "reqps",
            "Callers that left: while their rows waited, while they were computed, or while the answer was written.",
            (Query(total("phase", rate("gatefuse_cancelled_total")), "{{phase}}"),),
            stacked=True,
        ),
    ),
)
