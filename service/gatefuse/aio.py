"""The asyncio client under its public names."""

from gatefuse.client.asynchronous import AioClient as Client
from gatefuse.client.transport.aio_stream import AioStream as Stream

__all__ = ["Client", "Stream"]
