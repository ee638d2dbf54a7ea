"""A gRPC server in threads of the test's own process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc

from gatefuse.client.messages import CHANNEL_OPTIONS
from gatefuse_protos import open_inference_pb2 as pb


@contextmanager
def serving(
    handlers: Mapping[str, grpc.RpcMethodHandler[Any, Any]],
    threads: int,
    options: Sequence[tuple[str, int]] = (),
) -> Iterator[str]:
    """Serves some methods of the protocol, with gRPC's ``options`` beside the clients'; yields HOST:PORT."""
    server = grpc.server(ThreadPoolExecutor(threads), options=(*CHANNEL_OPTIONS, *options))
    service = grpc.method_handlers_generic_handler(pb.SERVICE_NAME, dict(handlers))
    server.add_generic_rpc_handlers((service,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(0).wait()
