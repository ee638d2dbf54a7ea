"""What is counted per request and batch: each family's name, labels, buckets and meaning.

A call site never touches these: it uses the typed methods of `record`. What the driver looks at, processes and
devices, is in `node_families`.
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
# From one row on a large GPU to a full batch on a small CPU.
DEVICE_BUCKETS_S = (2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 5e-3, 2e-2, 0.1, 1)
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
INFERENCE_METHODS = ("ModelInfer", "ModelStreamInfer")
# Durations and refusals of the others go together: nobody waits for one of them on every request.
TIMED_METHODS = (*INFERENCE_METHODS, "other")
# What our handlers can answer; what gRPC refuses by itself never reaches them.
CODES = (
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "RESOURCE_EXHAUSTED",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
)
# The codes of the other methods that exist from the start; the rest of CODES appears with its first use.
COMMON_CODES = ("OK", "INVALID_ARGUMENT", "INTERNAL", "UNAVAILABLE")
OUTCOMES = ("ok", "client", "server", "shed")
SHED_REASONS = (
    "queue_full",
    "limit",
    "queue_timeout",
    "deadline",
    "draining",
    "no_replica",
    "unloaded",
)
INVALID_REASONS = ("shape", "dtype", "size", "mismatch", "model", "unsupported")
CANCEL_PHASES = ("queued", "executing", "replying")
ROW_OUTCOMES = ("answered", "dropped")
REPLICA_STATES = ("starting", "warming", "ready", "draining", "failed", "dead")
RESTART_CAUSES = ("crash", "hang", "gpu")
# There, and back.
REPLICA_HOPS = (("to_replica", "from_replica"),)
DEVICE_HOPS = (*REPLICA_HOPS, ("h2d", "d2h"))
HOPS = ("grpc_in", "grpc_out", *chain.from_iterable(DEVICE_HOPS))
CALL_OUTCOMES = ("ok", "expired", "failed", "died", "timeout")

requests = Counter(
    "gatefuse_requests",
    "Finished calls, and requests of streams, by what they were answered. What gRPC refuses by itself, a message above "
    "max_message_bytes for example, is not among them.",
    ["method", "code"],
)
request_duration = Histogram(
    "gatefuse_request_duration_seconds",
    "From the handler's start to the status handed to gRPC: the message has been received, the answer is not yet sent.",
    ["method", "outcome"],
    buckets=DURATION_BUCKETS_S,
)
requests_in_flight = Gauge(
    "gatefuse_requests_in_flight",
    "Calls and requests of streams that were started and are not finished.",
    ["method"],
    multiprocess_mode="livesum",
)
requests_shed = Counter(
    "gatefuse_requests_shed",
    "Refused, or given up because time ran out, for a reason that passes. Only `deadline` may have cost the device "
    "something; `unloaded` was asked for.",
    ["method", "reason"],
)
requests_invalid = Counter("gatefuse_requests_invalid", "Refused by validation.", ["reason"])
cancelled = Counter(
    "gatefuse_cancelled",
    "Callers that left before their answer: while the rows waited, were at a worker, or were back.",
    ["phase"],
)
inference_duration = Histogram(
    "gatefuse_inference_duration_seconds",
    "Per answered request: accepted until its rows were back.",
    ["model", "backend"],
    buckets=DURATION_BUCKETS_S,
)
request_rows = Histogram(
    "gatefuse_request_rows",
    "Rows per accepted request.",
    ["model", "backend"],
    buckets=ROW_BUCKETS,
)
rows = Counter(
    "gatefuse_rows",
    "Rows of accepted requests by how the request ended: answered, or dropped because of a failure, a deadline or a "
    "caller that left.",
    ["model", "backend", "outcome"],
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
    "gatefuse_batch_rows",
    "Real rows per batch sent to a worker, without padding. Rows of a batch whose worker died are sent, and counted, "
    "again.",
    ["model", "backend"],
    buckets=ROW_BUCKETS,
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
    "A batch's call time less the worker's own time: the hop there and back, and the wait for a batch before it.",
    buckets=SHORT_BUCKETS_S,
)
replicas = Gauge("gatefuse_replicas", "Workers by state.", ["state"], multiprocess_mode="livesum")
replica_restarts = Counter(
    "gatefuse_replica_restarts",
    "Worker processes replaced: killed for their silence (hang), ended by their device's fault (gpu), or gone (crash).",
    ["cause"],
)
device_busy = Counter(
    "gatefuse_device_busy_seconds",
    "Device time of the batches: CUDA events on a GPU, the call's time on a CPU.",
    ["model", "backend", "device"],
)
device_batch = Histogram(
    "gatefuse_device_batch_seconds",
    "Device time of one batch, by the smallest of 1, 4, 16, ... that holds the rows computed for it.",
    ["model", "backend", "bucket"],
    buckets=DEVICE_BUCKETS_S,
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
    "Bytes that the executed kernels must at least read and write, by formula and not measured. The true traffic is "
    "larger where tiles are read again, smaller where weights stay in a cache.",
    ["model", "backend", "kernel", "direction"],
)
flops = Counter(
    "gatefuse_flops_modelled",
    "Floating-point operations of the executed kernels, by formula and not measured: products, activations, "
    "elementwise steps.",
    ["model", "backend", "kernel"],
)
transfer_bytes = Counter(
    "gatefuse_transfer_bytes",
    "Bytes of tensors that the service moved. gRPC's own framing and protobuf's are not among them.",
    ["hop"],
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
    "Constant 1, labelled with what a model is; absent once it is unloaded.",
    ["model", "backend", "dtype", "hidden", "intermediate", "weights"],
    multiprocess_mode="livemax",
)
event_loop_lag = Gauge(
    "gatefuse_event_loop_lag_seconds",
    "The latest that the frontend's event loop came to a timer, within the last ten seconds.",
    ["process"],
    multiprocess_mode="livemax",
)
drain_state = Gauge(
    "gatefuse_drain_state",
    "1 while the process answers what it accepted and takes nothing new.",
    ["process"],
    multiprocess_mode="livemax",
)
