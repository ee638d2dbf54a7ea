"""The methods of the protocol that this server does not have now: what to answer, and why."""

from collections.abc import Container, Mapping
from functools import partial

from gatefuse.errors import Unsupported
from gatefuse.frontend.rpc.call import Context, Handler, unary
from gatefuse_protos import open_inference_pb2 as pb

_REASONS = {
    "SystemSharedMemory": "client shared memory is off: start the server with --allow-client-shm",
    "CudaSharedMemory": "client shared memory is off: start the server with --allow-client-shm",
}


def absent_methods(present: Container[str]) -> Mapping[str, Handler]:
    """A handler for each method of the protocol that is not among `present`: UNIMPLEMENTED, with the reason."""
    service = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    handlers: dict[str, Handler] = {}
    for method in service.methods:
        if method.name not in present:
            refuse = partial(_refuse, _reason(method.name))
            handlers[method.name] = unary(method.name, bytes, refuse)
    return handlers


def _reason(name: str) -> str:
    for prefix, reason in _REASONS.items():
        if name.startswith(prefix):
            return reason
    return f"this server does not have {name}"


async def _refuse(reason: str, request: bytes, context: Context) -> bytes:
    raise Unsupported(reason)
