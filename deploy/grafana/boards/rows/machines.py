"""GPUs and processes. The rows are functions: one worker's board narrows them by its variables."""

from __future__ import annotations

from deploy.grafana.boards.panels import Panel, Query, Row
from deploy.grafana.boards.promql import increase, rate, selected, total

NOT_ON_A_CPU = "Absent on a machine without a GPU."
# The exporter's addresses are not those of the service, so it cannot be chosen by them.
ALL_NODES = "Of every node that Prometheus knows."


def gpu_row(*matchers: str) -> Row:
    """What the driver says of each GPU, by the service itself; `matchers` narrow the label `device`."""

    def device(metric: str) -> str:
        return f"max by (instance, device) ({selected(metric, *matchers)})"

    return Row(
        "GPU",
        (
            Panel(
                "GPU power",
                "watt",
                f"What each GPU draws. {NOT_ON_A_CPU}",
                (Query(device("gatefuse_gpu_power_watts"), "{{instance}} {{device}}"),),
            ),
            Panel(
                "GPU temperature",
                "celsius",
                f"Of the chip. {NOT_ON_A_CPU}",
                (Query(device("gatefuse_gpu_temperature_celsius"), "{{instance}} {{device}}"),),
                minimum=None,
            ),
            Panel(
                "GPU memory in use",
                "percentunit",
                f"Of all processes on the GPU, over what it has. {NOT_ON_A_CPU}",
                (
                    Query(
                        f"{device('gatefuse_gpu_memory_used_bytes')}"
                        f" / {device('gatefuse_gpu_memory_total_bytes')}",
                        "{{instance}} {{device}}",
                    ),
                ),
                maximum=1,
            ),
            Panel(
                "Memory of the service, by kind",
                "bytes",
                "The allocator's view: weights, the pools of CUDA graphs, reserved in all, and the peak. "
                f"{NOT_ON_A_CPU}",
                (
                    Query(
                        "max by (instance, device, kind) "
                        f"({selected('gatefuse_device_memory_bytes', *matchers)})",
                        "{{instance}} {{device}} {{kind}}",
                    ),
                ),
            ),
            Panel(
                "GPU in use",
                "percentunit",
                "Share of time in which some kernel was resident, however small: see the next row for how much of the "
                f"GPU worked. {NOT_ON_A_CPU}",
                (Query(device("gatefuse_gpu_utilization_ratio"), "{{instance}} {{device}}"),),
                maximum=1,
            ),
            Panel(
                "Energy",
                "watt",
                f"Joules per second from the GPU's own energy counter. {NOT_ON_A_CPU}",
                (
                    Query(
                        total(
                            "instance, device", rate("gatefuse_gpu_energy_joules_total", *matchers)
                        ),
                        "{{instance}} {{device}}",
                    ),
                ),
            ),
            Panel(
                "Slowed down, by reason",
                "short",
                f"1 while the driver holds the clocks back for that reason. {NOT_ON_A_CPU}",
                (
                    Query(
                        "max by (instance, device, reason) "
                        f"({selected('gatefuse_gpu_throttled', *matchers)})",
                        "{{instance}} {{device}} {{reason}}",
                    ),
                ),
                maximum=1,
            ),
            Panel(
                "Memory errors",
                "short",
                f"ECC errors, corrected or not. {NOT_ON_A_CPU}",
                (
                    Query(
                        total(
                            "instance, device, kind",
                            increase("gatefuse_gpu_ecc_errors_total", *matchers),
                        ),
                        "{{instance}} {{device}} {{kind}}",
                    ),
                ),
            ),
        ),
    )


DCGM = Row(
    "GPU, by the DCGM exporter",
    (
        Panel(
            "Multiprocessors and tensor cores at work",
            "percentunit",
            "Share of cycles in which a multiprocessor had a warp (SM), and in which tensor cores computed. Needs the "
            f"exporter's profiling fields. {ALL_NODES}",
            (
                Query("avg by (Hostname, gpu) (DCGM_FI_PROF_SM_ACTIVE)", "SM {{Hostname}} {{gpu}}"),
                Query(
                    "avg by (Hostname, gpu) (DCGM_FI_PROF_PIPE_TENSOR_ACTIVE)",
                    "tensor {{Hostname}} {{gpu}}",
                ),
            ),
            maximum=1,
        ),
        Panel(
            "Memory interface at work",
            "percentunit",
            "Share of cycles in which device memory moved data. Times the peak bandwidth, it must not be below the "
            f"modelled bytes per second. {ALL_NODES}",
            (Query("avg by (Hostname, gpu) (DCGM_FI_PROF_DRAM_ACTIVE)", "{{Hostname}} {{gpu}}"),),
            maximum=1,
        ),
        Panel(
            "Last Xid error",
            "none",
            f"The driver's code of the last fault of each GPU; 0 is none. {ALL_NODES}",
            (Query("max by (Hostname, gpu) (DCGM_FI_DEV_XID_ERRORS)", ""),),
            kind="table",
        ),
    ),
)


EVENT_LOOP_LAG = Panel(
    "Lag of the event loop",
    "s",
    "By how much a frontend's loop was late at worst in the last ten seconds: a request may have waited that long.",
    (
        Query(
            f"max by (instance, process) ({selected('gatefuse_event_loop_lag_seconds')})",
            "{{instance}} {{process}}",
        ),
    ),
)


def process_row(*matchers: str, more: tuple[Panel, ...] = ()) -> Row:
    """The service's processes; `matchers` narrow the label `process`, and `more` panels stand beside."""
    return Row(
        "Processes",
        (
            Panel(
                "Resident memory",
                "bytes",
                "Of the driver, the frontends and the workers. Memory that several share is in each of them.",
                (
                    Query(
                        total(
                            "instance, process",
                            selected("gatefuse_process_resident_bytes", *matchers),
                        ),
                        "{{instance}} {{process}}",
                    ),
                ),
            ),
            Panel(
                "Processor time",
                "short",
                "Seconds per second: 1 is one core, all the time.",
                (
                    Query(
                        total(
                            "instance, process",
                            rate("gatefuse_process_cpu_seconds_total", *matchers),
                        ),
                        "{{instance}} {{process}}",
                    ),
                ),
                stacked=True,
            ),
            Panel(
                "Open files",
                "short",
                "File descriptors. A line that only climbs is a leak.",
                (
                    Query(
                        total(
                            "instance, process", selected("gatefuse_process_open_fds", *matchers)
                        ),
                        "{{instance}} {{process}}",
                    ),
                ),
            ),
            *more,
        ),
    )


VERSIONS = Row(
    "Versions",
    (
        Panel(
            "What runs",
            "none",
            "One line for each version in service. Two lines while a new one is rolled out.",
            (Query(f"count by (version, python, grpc) ({selected('gatefuse_build_info')})", ""),),
            kind="table",
        ),
        Panel(
            "Models",
            "none",
            "What is served: the same weights have the same digest.",
            (
                Query(
                    "count by (model, backend, dtype, hidden, intermediate, weights) "
                    f"({selected('gatefuse_model_info')} == 1)",
                    "",
                ),
            ),
            kind="table",
        ),
    ),
)
