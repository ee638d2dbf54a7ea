"""A region of a GPU's memory: the frontend knows its handle, and the worker that owns the GPU opens it."""

from gatefuse.errors import InvalidRequest
from gatefuse.frontend.shared_memory.registry import Registration

HANDLE_BYTES = 64
"""Size of a CUDA IPC memory handle (`cudaIpcMemHandle_t`)."""


class CudaRegion:
    """Rows on a device. The CPU can neither read nor write them."""

    def __init__(self, registration: Registration) -> None:
        """Of the registration that was checked."""
        self.name = registration.name
        self.byte_size = registration.byte_size
        self.device_id = registration.device_id
        self.handle = registration.handle

    def __repr__(self) -> str:
        """The name and the device."""
        return f"CudaRegion({self.name!r}, device_id={self.device_id}, {self.byte_size} bytes)"


def check_handle(handle: bytes, device_id: int, byte_size: int) -> None:
    """Checks what can be known of a region before a device opens it.

    Raises:
        InvalidRequest: no region could be so.
    """
    if len(handle) != HANDLE_BYTES:
        raise InvalidRequest(
            "size", f"raw_handle has {len(handle)} bytes: a CUDA IPC handle has {HANDLE_BYTES}"
        )
    if device_id < 0:
        raise InvalidRequest("mismatch", "device_id is negative")
    if not 1 <= byte_size < 2**63:
        raise InvalidRequest("size", "byte_size must be at least 1")
