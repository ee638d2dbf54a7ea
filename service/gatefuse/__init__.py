"""Gatefuse: batched, fused MLP inference over gRPC.

The client's names are here, and are loaded when they are asked for: ``gatefuse.Client``, ``gatefuse.Cost``,
``gatefuse.InferenceError``, ``gatefuse.Result``, ``gatefuse.RetryPolicy``; ``gatefuse.aio.Client`` for asyncio.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gatefuse import aio
    from gatefuse.client import Client
    from gatefuse.messages import Cost, InferenceError, Result
    from gatefuse.transport.retry import RetryPolicy

__version__ = version("gatefuse")
__all__ = ["Client", "Cost", "InferenceError", "Result", "RetryPolicy", "__version__", "aio"]

_HOMES = {
    "Client": "gatefuse.client",
    "Cost": "gatefuse.messages",
    "InferenceError": "gatefuse.messages",
    "Result": "gatefuse.messages",
    "RetryPolicy": "gatefuse.transport.retry",
}


def __getattr__(name: str) -> Any:
    """Loads a public name: grpc and numpy come with it, and nothing heavier."""
    if name == "aio":
        return import_module("gatefuse.aio")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'gatefuse' has no attribute {name!r}")
    return getattr(import_module(home), name)
