"""Metrics as text, and what is drawn of them, for the tests of the status page and of `top`."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from gatefuse.status.drawing import draw
from gatefuse.status.facts import Facts, ModelFacts, WorkerFacts
from gatefuse.status.picture import Picture
from gatefuse.status.samples import Change, Sample, Samples

STARTED_UNIX_S = 1_796_000_000
FACTS = Facts(
    grpc="127.0.0.1:8001",
    models=(
        ModelFacts("ffn", "swiglu", "fused", "bf16", 0, (0, 1)),
        ModelFacts("ffn-eager", "swiglu", "eager", "bf16", 0, (0,)),
        ModelFacts("gate", "elementwise", "auto", "fp32", 1, (1,)),
    ),
    workers=(WorkerFacts(0, "ready", "cuda"), WorkerFacts(1, "ready", "cuda", restarts=2)),
    pids={"driver": 41, "worker-0": 43},
)
# Cumulative counts of durations: half at or below 1 ms, all at or below 2 ms.
BEFORE = """
gatefuse_build_info{version="1.2.3",python="3",grpc="1"} 1
gatefuse_model_info{model="ffn",backend="fused",dtype="bf16",hidden="8",intermediate="16",weights="w"} 1
gatefuse_model_info{model="ffn-eager",backend="eager",dtype="bf16",hidden="8",intermediate="16",weights="w"} 1
gatefuse_model_info{model="gate",backend="fused",dtype="fp32",hidden="0",intermediate="0",weights=""} 1
gatefuse_request_duration_seconds_count{method="ModelInfer",outcome="ok"} 100
gatefuse_request_duration_seconds_count{method="ModelInfer",outcome="shed"} 0
gatefuse_request_duration_seconds_count{method="ServerLive",outcome="ok"} 7
gatefuse_inference_duration_seconds_bucket{model="ffn",backend="fused",le="0.001"} 100
gatefuse_inference_duration_seconds_bucket{model="ffn",backend="fused",le="0.002"} 100
gatefuse_inference_duration_seconds_bucket{model="ffn",backend="fused",le="+Inf"} 100
gatefuse_inference_duration_seconds_count{model="ffn",backend="fused"} 100
gatefuse_batch_rows_sum{model="ffn",backend="fused"} 400
gatefuse_batch_rows_count{model="ffn",backend="fused"} 100
gatefuse_device_busy_seconds_total{model="ffn",backend="fused",device="cuda:0"} 10
gatefuse_requests_shed_total{reason="queue_full"} 0
"""
AFTER = """
gatefuse_build_info{version="1.2.3",python="3",grpc="1"} 1
gatefuse_model_info{model="ffn",backend="fused",dtype="bf16",hidden="8",intermediate="16",weights="w"} 1
gatefuse_model_info{model="ffn-eager",backend="eager",dtype="bf16",hidden="8",intermediate="16",weights="w"} 1
gatefuse_model_info{model="gate",backend="fused",dtype="fp32",hidden="0",intermediate="0",weights=""} 1
gatefuse_request_duration_seconds_count{method="ModelInfer",outcome="ok"} 120
gatefuse_request_duration_seconds_count{method="ModelStreamInfer",outcome="ok"} 20
gatefuse_request_duration_seconds_count{method="ModelInfer",outcome="shed"} 10
gatefuse_request_duration_seconds_count{method="ServerLive",outcome="ok"} 70
gatefuse_requests_in_flight{method="ModelInfer"} 3
gatefuse_requests_in_flight{method="ServerLive"} 1
gatefuse_inference_duration_seconds_bucket{model="ffn",backend="fused",le="0.001"} 120
gatefuse_inference_duration_seconds_bucket{model="ffn",backend="fused",le="0.002"} 140
gatefuse_inference_duration_seconds_bucket{model="ffn",backend="fused",le="+Inf"} 140
gatefuse_inference_duration_seconds_count{model="ffn",backend="fused"} 140
gatefuse_queue_wait_seconds_bucket{model="ffn",backend="fused",le="0.0002"} 40
gatefuse_queue_wait_seconds_bucket{model="ffn",backend="fused",le="+Inf"} 40
gatefuse_queue_rows{model="ffn"} 5
gatefuse_queue_capacity_rows{model="ffn"} 64
gatefuse_queue_capacity_rows{model="gate"} 32
gatefuse_batch_rows_sum{model="ffn",backend="fused"} 560
gatefuse_batch_rows_count{model="ffn",backend="fused"} 120
gatefuse_batch_padding_rows_total{model="ffn",backend="fused"} 40
gatefuse_kernel_launches_total{model="ffn",backend="fused",kernel="gate_up",mode="graph"} 20
gatefuse_kernel_launches_total{model="ffn",backend="fused",kernel="down",mode="graph"} 20
gatefuse_dram_bytes_modelled_total{model="ffn",backend="fused",kernel="down",direction="read"} 1500
gatefuse_dram_bytes_modelled_total{model="ffn",backend="fused",kernel="down",direction="write"} 100
gatefuse_device_busy_seconds_total{model="ffn",backend="fused",device="cuda:0"} 12
gatefuse_requests_shed_total{reason="queue_full"} 10
gatefuse_requests_shed_total{reason="deadline"} 0
gatefuse_batches_total{trigger="idle"} 120
gatefuse_gpu_memory_used_bytes{device="cuda:0"} 4e9
gatefuse_gpu_memory_total_bytes{device="cuda:0"} 8e9
gatefuse_gpu_power_watts{device="cuda:0"} 350.5
gatefuse_gpu_temperature_celsius{device="cuda:0"} 61
gatefuse_gpu_utilization_ratio{device="cuda:0"} 0.5
gatefuse_gpu_throttled{device="cuda:0",reason="power"} 1
gatefuse_gpu_throttled{device="cuda:0",reason="thermal"} 0
gatefuse_gpu_ecc_errors_total{device="cuda:0",kind="corrected"} 2
gatefuse_process_resident_bytes{process="driver"} 1e8
gatefuse_process_open_fds{process="driver"} 42
gatefuse_process_cpu_seconds_total{process="driver"} 2
gatefuse_event_loop_lag_seconds{process="frontend-0"} 0.004
"""
WINDOW_S = 4.0


def samples(text: str) -> Samples:
    """The series of an exposition."""
    return Samples(
        Sample(sample.name, sample.labels, sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    )


def change() -> Change:
    """What happened between the two texts."""
    return Change(samples(BEFORE), samples(AFTER), WINDOW_S)


def picture(facts: Facts = FACTS) -> Picture:
    """What is drawn of the second text, and of the four seconds since the first."""
    return draw(facts, samples(AFTER), change(), STARTED_UNIX_S, up_s=100.0)
