"""The asyncio client under its public names."""

from gatefuse.aio_client import AioClient as Client
from gatefuse.transport.aio_stream import AioStream as Stream

__all__ = ["Client", "Stream"]
