"""The grpc.aio server of one frontend: inference, health and reflection on one port."""

from google.protobuf import descriptor_pool
from grpc import aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from gatefuse.config import ServiceConfig
from gatefuse.frontend.servicer import Servicer
from gatefuse_protos import open_inference_pb2 as pb

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING

# Calls that have come and wait to be taken. gRPC's own limit, 1000 to 3000, answers those beyond it CANCELLED, as if
# the client had: it is set so high that the bounded queues refuse first, which say why and when to come again.
MAX_PENDING_CALLS = 1 << 20


class Server:
    """Starts NOT_SERVING: whoever starts it says when it is ready."""

    def __init__(self, servicer: Servicer, config: ServiceConfig) -> None:
        """Builds the server; nothing listens yet. Must be made on the running event loop."""
        self._config = config
        self._health = health.aio.HealthServicer()
        self._server = aio.server(
            options=[
                ("grpc.max_receive_message_length", config.max_message_bytes),
                ("grpc.max_send_message_length", config.max_message_bytes),
                ("grpc.server.max_pending_requests", MAX_PENDING_CALLS),
                ("grpc.server.max_pending_requests_hard_limit", MAX_PENDING_CALLS),
                # One frontend must own its port alone, so that a second server is told it is taken.
                ("grpc.so_reuseport", 1 if config.frontends > 1 else 0),
            ]
        )
        self._server.add_generic_rpc_handlers((servicer.handler(),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (pb.SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server, pool=_reflected_pool())

    async def start(self) -> int:
        """Listens; returns the port. Raises RuntimeError when it is taken."""
        await self.set_serving(False)
        address = f"{self._config.host}:{self._config.grpc_port}"
        port = self._server.add_insecure_port(address)
        await self._server.start()
        return port

    async def set_serving(self, serving: bool) -> None:
        """What grpc.health.v1 answers, for the server as a whole and for the inference service."""
        status = SERVING if serving else NOT_SERVING
        for service in ("", pb.SERVICE_NAME):
            await self._health.set(service, status)

    async def stop(self, grace_s: float) -> None:
        """Closes the port at once, and calls that still run after `grace_s`."""
        await self._server.stop(grace_s)


def _reflected_pool() -> descriptor_pool.DescriptorPool:
    """One pool with every service of this server: the inference messages are not in protobuf's default one."""
    pool = descriptor_pool.DescriptorPool()
    for descriptor in (pb.DESCRIPTOR, health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR):
        pool.AddSerializedFile(descriptor.serialized_pb)
    return pool
