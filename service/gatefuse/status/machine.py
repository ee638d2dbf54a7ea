"""Devices and processes: what is known of each, None for what is not exported. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from gatefuse.status.picture import Device, Process
from gatefuse.status.samples import Change, Labels, Samples

_GPU = "gatefuse_gpu_"


def devices(samples: Samples, window: Change | None) -> tuple[Device, ...]:
    """Every device that ran a batch or that NVML tells of."""
    busy = samples.by("gatefuse_device_busy_seconds_total", "device")
    gains = _gains(window, "gatefuse_device_busy_seconds_total", "device")
    used, total, power, heat, share, ecc, throttled = (
        samples.by(f"{_GPU}{name}", "device")
        for name in (
            "memory_used_bytes",
            "memory_total_bytes",
            "power_watts",
            "temperature_celsius",
            "utilization_ratio",
            "ecc_errors_total",
            "throttled",
        )
    )
    reasons = samples.by(f"{_GPU}throttled", "device", "reason")
    return tuple(
        Device(
            device=key[0],
            busy_ratio=gains.get(key),
            utilization_ratio=share.get(key),
            memory_used_bytes=used.get(key),
            memory_total_bytes=total.get(key),
            power_watts=power.get(key),
            temperature_celsius=heat.get(key),
            throttled=tuple(why for (of, why), on in reasons.items() if of == key[0] and on),
            ecc_errors=round(ecc[key]) if key in ecc else None,
        )
        for key in sorted({*busy, *used, *power, *throttled})
    )


def processes(
    samples: Samples, window: Change | None, pids: Mapping[str, int]
) -> tuple[Process, ...]:
    """Every process that tells of itself."""
    resident, fds, lag = (
        samples.by(f"gatefuse_{name}", "process")
        for name in ("process_resident_bytes", "process_open_fds", "event_loop_lag_seconds")
    )
    cpu = _gains(window, "gatefuse_process_cpu_seconds_total", "process")
    return tuple(
        Process(
            process=key[0],
            resident_bytes=resident.get(key),
            open_fds=round(fds[key]) if key in fds else None,
            cpu_ratio=cpu.get(key),
            event_loop_lag_s=lag.get(key),
            pid=pids.get(key[0]),
        )
        for key in sorted({*resident, *fds, *lag})
    )


def _gains(window: Change | None, name: str, label: str) -> dict[Labels, float]:
    """A counter's gain a second, by a label."""
    if window is None:
        return {}
    return {key: gain / window.seconds for key, gain in window.by(name, label).items()}
