"""Series that boards show and the service does not export yet, with their labels. Empty is what it should be."""

from __future__ import annotations

AWAITED: dict[str, set[str]] = {
    "gatefuse_device_batch_seconds_bucket": {"model", "backend", "bucket", "le"},
    "gatefuse_device_memory_bytes": {"device", "kind"},
    "gatefuse_device_errors_total": {"kind"},
    "gatefuse_process_resident_bytes": {"process"},
    "gatefuse_process_open_fds": {"process"},
    "gatefuse_process_cpu_seconds_total": {"process"},
    "gatefuse_event_loop_lag_seconds": {"process"},
    "gatefuse_gpu_memory_used_bytes": {"device"},
    "gatefuse_gpu_memory_total_bytes": {"device"},
    "gatefuse_gpu_power_watts": {"device"},
    "gatefuse_gpu_temperature_celsius": {"device"},
    "gatefuse_gpu_utilization_ratio": {"device"},
    "gatefuse_gpu_energy_joules_total": {"device"},
    "gatefuse_gpu_throttled": {"device", "reason"},
    "gatefuse_gpu_ecc_errors_total": {"device", "kind"},
    "gatefuse_drain_state": {"process"},
}
