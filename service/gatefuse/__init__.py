"""Gatefuse: batched, fused MLP inference over gRPC.

The client's names are here, and are loaded when they are asked for: ``gatefuse.Client`` and ``gatefuse.aio.Client``,
what they take, give and raise, and ``gatefuse.remote``, which needs torch.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gatefuse import aio, remote
    from gatefuse.client.blocking import Client
    from gatefuse.client.messages import Cost, InferenceError, Result
    from gatefuse.client.metadata import ModelMetadata, ServerMetadata, TensorMetadata
    from gatefuse.client.transport.retry import NO_RETRY, RetryPolicy
    from gatefuse.client.transport.stream import Stream
    from gatefuse.wire import Datatype

__version__ = version("gatefuse")
__all__ = [
    "NO_RETRY",
    "Client",
    "Cost",
    "Datatype",
    "InferenceError",
    "ModelMetadata",
    "Result",
    "RetryPolicy",
    "ServerMetadata",
    "Stream",
    "TensorMetadata",
    "__version__",
    "aio",
    "remote",
]

_MODULES = ("aio", "remote")
_HOMES = {
    "NO_RETRY": "gatefuse.client.transport.retry",
    "Client": "gatefuse.client.blocking",
    "Cost": "gatefuse.client.messages",
    "Datatype": "gatefuse.wire",
    "InferenceError": "gatefuse.client.messages",
    "ModelMetadata": "gatefuse.client.metadata",
    "Result": "gatefuse.client.messages",
    "RetryPolicy": "gatefuse.client.transport.retry",
    "ServerMetadata": "gatefuse.client.metadata",
    "Stream": "gatefuse.client.transport.stream",
    "TensorMetadata": "gatefuse.client.metadata",
}


def __getattr__(name: str) -> Any:
    """Loads a public name: grpc and numpy come with it, and nothing heavier, save torch with ``remote``."""
    if name in _MODULES:
        return import_module(f"gatefuse.{name}")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'gatefuse' has no attribute {name!r}")
    return getattr(import_module(home), name)
