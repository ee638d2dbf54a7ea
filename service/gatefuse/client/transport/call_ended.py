"""The end of a call as a value: what grpc raises is the call itself, with its request."""

from __future__ import annotations

from typing import Any

import grpc


class CallEnded(grpc.RpcError):
    """How a call ended, as gRPC tells it, without the call: that would keep its request."""

    def __init__(
        self,
        code: grpc.StatusCode,
        details: str | None,
        trailing_metadata: Any = None,
    ) -> None:
        """The status, its text, and what came with it."""
        super().__init__(code, details)
        self._code = code
        self._details = details
        self._trailing_metadata = trailing_metadata

    def code(self) -> grpc.StatusCode:
        """The status."""
        return self._code

    def details(self) -> str | None:
        """Its text."""
        return self._details

    def trailing_metadata(self) -> Any:
        """What came with it."""
        return self._trailing_metadata
