"""Gatefuse: batched, fused MLP inference over gRPC.

The client's names are here, and are loaded when they are asked for: ``gatefuse.Client`` and ``gatefuse.aio.Client``,
what they take, give and raise, and ``gatefuse.remote``, which needs torch.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gatefuse import aio, remote
    from gatefuse.client import Client
    from gatefuse.messages import Cost, InferenceError, Result
    from gatefuse.metadata import ModelMetadata, ServerMetadata, TensorMetadata
    from gatefuse.transport.retry import NO_RETRY, RetryPolicy
    from gatefuse.transport.stream import Stream
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
    "NO_RETRY": "gatefuse.transport.retry",
    "Client": "gatefuse.client",
    "Cost": "gatefuse.messages",
    "Datatype": "gatefuse.wire",
    "InferenceError": "gatefuse.messages",
    "ModelMetadata": "gatefuse.metadata",
    "Result": "gatefuse.messages",
    "RetryPolicy": "gatefuse.transport.retry",
    "ServerMetadata": "gatefuse.metadata",
    "Stream": "gatefuse.transport.stream",
    "TensorMetadata": "gatefuse.metadata",
}


def __getattr__(name: str) -> Any:
    """Loads a public name: grpc and numpy come with it, and nothing heavier, save torch with ``remote``."""
    if name in _MODULES:
        return import_module(f"gatefuse.{name}")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'gatefuse' has no attribute {name!r}")
    return getattr(import_module(home), name)
