"""Every metric family: its name, labels, buckets and meaning.

A call site never touches these: it uses the typed methods of `record`.
"""

import os
from itertools import chain

from prometheus_client import Counter, Gauge, Histogram, values

if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
    # By default every increment asks the kernel for the process id, in case of a fork; the service never forks, and
    # the question costs more than the increment.
    _pid = os.getpid()
    values.ValueClass = values.MultiProcessValue(lambda: _pid)  # type: ignore[no-untyped-call]

# 50 ms is the latency objective, so it is an edge: the share under it is exact.
DURATION_BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
# A hop between processes of one machine takes tens of microseconds.
SHORT_BUCKETS_S = (
    2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 1, 10,
)  # fmt: skip
ROW_BUCKETS = tuple(2**power for power in range(13))
REQUEST_BUCKETS = tuple(2**power for power in range(10))

METHODS = (
    "ServerLive",
    "ServerReady",
    "ServerMetadata",
    "ModelReady",
    "ModelMetadata",
    "ModelInfer",
    "ModelStreamInfer",
    "ModelConfig",
    "ModelStatistics",
    "RepositoryIndex",
    "RepositoryModelLoad",
    "RepositoryModelUnload",
    "SystemSharedMemoryStatus",
    "SystemSharedMemoryRegister",
    "SystemSharedMemoryUnregister",
    "CudaSharedMemoryStatus",
    "CudaSharedMemoryRegister",
    "CudaSharedMemoryUnregister",
    "TraceSetting",
    "LogSettings",
)
OUTCOMES = ("ok", "client", "server", "shed")
SHED_REASONS = ("queue_full", "queue_timeout", "deadline", "draining", "no_replica")
INVALID_REASONS = ("shape", "dtype", "size", "mismatch", "model", "unsupported")
CANCEL_PHASES = ("queued", "executing")
REPLICA_STATES = ("starting", "warming", "ready", "failed", "dead")
# There, and back.
REPLICA_HOPS = (("to_replica", "from_replica"),)
DEVICE_HOPS = (*REPLICA_HOPS, ("h2d", "d2h"))
HOPS = ("grpc_in", "grpc_out", *chain.from_iterable(DEVICE_HOPS))
CALL_OUTCOMES = ("ok", "expired", "failed", "died", "timeout")

requests = Counter("gatefuse_requests", "Finished RPCs.", ["method", "code"])
request_duration = Histogram(
    "gatefuse_request_duration_seconds",
    "From the handler's start to the status handed to gRPC.",
    ["method", "outcome"],
    buckets=DURATION_BUCKETS_S,
)
requests_in_flight = Gauge(
    "gatefuse_requests_in_flight",
    "RPCs started and not finished.",
    ["method"],
    multiprocess_mode="livesum",
)
requests_shed = Counter("gatefuse_requests_shed", "Refused before compute.", ["reason"])
requests_invalid = Counter("gatefuse_requests_invalid", "Refused by validation.", ["reason"])
cancelled = Counter("gatefuse_cancelled", "Callers that left before their answer.", ["phase"])
inference_duration = Histogram(
    "gatefuse_inference_duration_seconds",
    "ModelInfer calls that were answered with rows: handler's start to status.",
    ["model", "backend"],
    buckets=DURATION_BUCKETS_S,
)
request_rows = Histogram(
    "gatefuse_request_rows",
    "Rows per accepted request.",
    ["model", "backend"],
    buckets=ROW_BUCKETS,
)
queue_rows = Gauge(
    "gatefuse_queue_rows", "Rows waiting to be sealed.", ["model"], multiprocess_mode="livesum"
)
queue_capacity_rows = Gauge(
    "gatefuse_queue_capacity_rows",
    "Rows that may wait.",
    ["model"],
    multiprocess_mode="livesum",
)
queue_wait = Histogram(
    "gatefuse_queue_wait_seconds",
    "Per request: accepted until its batch was sealed.",
    ["model", "backend"],
    buckets=SHORT_BUCKETS_S,
)
batch_rows = Histogram(
    "gatefuse_batch_rows", "Real rows per batch.", ["model", "backend"], buckets=ROW_BUCKETS
)
batch_requests = Histogram(
    "gatefuse_batch_requests",
    "Requests per batch.",
    ["model", "backend"],
    buckets=REQUEST_BUCKETS,
)
batches = Counter(
    "gatefuse_batches", "Batches sent to a worker, by why they were sealed.", ["trigger"]
)
batch_padding_rows = Counter(
    "gatefuse_batch_padding_rows",
    "Rows of zeros computed to reach a compiled or captured size.",
    ["model", "backend"],
)
replica_call = Histogram(
    "gatefuse_replica_call_seconds",
    "One batch at a worker, as the frontend sees it.",
    ["outcome"],
    buckets=SHORT_BUCKETS_S,
)
replica_overhead = Histogram(
    "gatefuse_replica_overhead_seconds",
    "A batch's call time less the worker's own time: the hop.",
    buckets=SHORT_BUCKETS_S,
)
replicas = Gauge("gatefuse_replicas", "Workers by state.", ["state"], multiprocess_mode="livesum")
replica_restarts = Counter("gatefuse_replica_restarts", "Workers replaced.", ["cause"])
device_busy = Counter(
    "gatefuse_device_busy_seconds",
    "Device time of the batches: CUDA events on a GPU, the call's time on a CPU.",
    ["model", "backend", "device"],
)
kernel_launches = Counter(
    "gatefuse_kernel_launches",
    "Kernels executed on the device, counted at the launcher; a graph replay counts its nodes.",
    ["model", "backend", "kernel", "mode"],
)
graph_replays = Counter(
    "gatefuse_graph_replays", "CUDA graphs launched, by row bucket.", ["model", "backend", "bucket"]
)
dram_bytes = Counter(
    "gatefuse_dram_bytes_modelled",
    "Compulsory traffic of the executed kernels. A lower bound where tiles are read again, an upper one where the "
    "weights stay in a cache.",
    ["model", "backend", "kernel", "direction"],
)
flops = Counter(
    "gatefuse_flops_modelled",
    "Floating-point operations of the executed kernels: products, activations, elementwise steps.",
    ["model", "backend", "kernel"],
)
transfer_bytes = Counter(
    "gatefuse_transfer_bytes", "Bytes moved by the service's own copies.", ["hop"]
)
audit_ratio = Gauge(
    "gatefuse_counter_audit_ratio",
    "What `gatefuse audit` last measured by what was counted; 1 is exact. Absent where the service was given no "
    "audit's result.",
    ["check"],
    multiprocess_mode="max",
)
audit_timestamp = Gauge(
    "gatefuse_counter_audit_timestamp_seconds",
    "When that audit ended, in seconds since 1970.",
    ["check"],
    multiprocess_mode="max",
)
build_info = Gauge(
    "gatefuse_build_info", "Constant 1, labelled with versions.", ["version", "python", "grpc"],
    multiprocess_mode="max",
)  # fmt: skip
model_info = Gauge(
    "gatefuse_model_info",
    "Constant 1, labelled with what a model is.",
    ["model", "backend", "dtype", "hidden", "intermediate", "weights"],
    multiprocess_mode="max",
)
