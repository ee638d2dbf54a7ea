"""The repository's methods as a client calls them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import grpc

from gatefuse.client.messages import CHANNEL_OPTIONS, method
from gatefuse_protos import open_inference_pb2 as pb

TIMEOUT_S = 120.0


class Control:
    """Loads and unloads models of a server."""

    def __init__(self, url: str) -> None:
        self._channel = grpc.insecure_channel(url, CHANNEL_OPTIONS)

    def close(self) -> None:
        self._channel.close()

    def load(self, name: str, config: Mapping[str, Any] | None = None) -> None:
        request = pb.RepositoryModelLoadRequest(model_name=name)
        if config is not None:
            request.parameters["config"].string_param = json.dumps(config)
        self.call("RepositoryModelLoad", request, pb.RepositoryModelLoadResponse)

    def unload(self, name: str) -> None:
        request = pb.RepositoryModelUnloadRequest(model_name=name)
        self.call("RepositoryModelUnload", request, pb.RepositoryModelUnloadResponse)

    def states(self) -> dict[str, tuple[str, str]]:
        """State and reason by name."""
        index = self.call(
            "RepositoryIndex", pb.RepositoryIndexRequest(), pb.RepositoryIndexResponse
        )
        return {model.name: (model.state, model.reason) for model in index.models}

    def call(self, name: str, request: Any, response: Any) -> Any:
        stub: grpc.UnaryUnaryMultiCallable[Any, Any] = self._channel.unary_unary(
            method(name), lambda message: message.SerializeToString(), response.FromString
        )
        return stub(request, timeout=TIMEOUT_S)
