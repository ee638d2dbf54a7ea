"""Every metric family, behind typed methods. The only package that knows prometheus_client.

Values live in prometheus_client's multi-process files, one set per process, in a folder that the service makes at
start: the endpoint sums them, so several frontends are one service, and counters survive the death of any process.
`PROMETHEUS_MULTIPROC_DIR` must be set before this package is imported.
"""

from gatefuse.metrics.buffers import flush_all as flush
from gatefuse.metrics.buffers import switch_off
from gatefuse.metrics.endpoint import process_died, serve
from gatefuse.metrics.exemplars import ExemplarFile
from gatefuse.metrics.loop_lag import LoopLag
from gatefuse.metrics.models import ModelMetrics
from gatefuse.metrics.node import Owner, this_node
from gatefuse.metrics.record import (
    RpcMetrics,
    call_ended_badly,
    caller_left,
    declare_driver,
    declare_frontend,
    describe_audit,
    describe_build,
    invalid,
    replica_restarted,
    set_draining,
    set_replicas,
    shed,
    watch_queue,
)

__all__ = [
    "ExemplarFile",
    "LoopLag",
    "ModelMetrics",
    "Owner",
    "RpcMetrics",
    "call_ended_badly",
    "caller_left",
    "declare_driver",
    "declare_frontend",
    "describe_audit",
    "describe_build",
    "flush",
    "invalid",
    "process_died",
    "replica_restarted",
    "serve",
    "set_draining",
    "set_replicas",
    "shed",
    "switch_off",
    "this_node",
    "watch_queue",
]
