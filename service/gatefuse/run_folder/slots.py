"""What a worker is called wherever its process is replaced: its slot, 0 to N - 1, and what follows from it."""

from pathlib import Path

_PREFIX = "worker-"


def worker_name(slot: int) -> str:
    """The worker's name in metrics and logs."""
    return f"{_PREFIX}{slot}"


def socket_name(slot: int) -> str:
    """The file in the run folder at which it listens."""
    return f"{worker_name(slot)}.sock"


def slot_of(socket_path: Path) -> int:
    """The slot of the worker at that socket; 0 for a worker that is the only one and has no number."""
    number = socket_path.stem.removeprefix(_PREFIX)
    return int(number) if number.isdigit() else 0


def device_label(device: str, slot: int) -> str:
    """The device of a slot, `cuda:2` or `cpu:0`: each process calls the one that it sees `cuda:0` or `cpu`."""
    return f"{device.partition(':')[0]}:{slot}"


def hang_marker(socket_path: Path, pid: int) -> Path:
    """The file by which a frontend tells the supervisor that it killed the worker `pid` for its silence."""
    return socket_path.with_suffix(f".hung-{pid}")


def fault_marker(socket_path: Path, pid: int) -> Path:
    """The file by which the worker `pid` tells the supervisor that its device ended it; its text says how."""
    return socket_path.with_suffix(f".fault-{pid}")


def cause_of_end(socket_path: Path, pid: int) -> tuple[str, str]:
    """Why a worker ended, `crash`, `hang` or `gpu`, and its device's fault, if it was one."""
    if hang_marker(socket_path, pid).exists():
        return "hang", "timeout"
    fault = fault_marker(socket_path, pid)
    return ("gpu", fault.read_text()) if fault.exists() else ("crash", "")
