"""Gatefuse: batched, fused MLP inference over gRPC."""

from importlib.metadata import version

__version__ = version("gatefuse")
