"""What server and client must spell alike where the protocol itself has no word for it."""

import re

PUSHBACK_KEY = "grpc-retry-pushback-ms"
"""The trailing metadata by which a server says when to ask again: gRPC's own, which its Python has no name for."""

STATUS_PARAMETER = "status"
"""The string parameter of an error on a stream: the name of the gRPC status that a call would have had."""

OUTPUTS_LEFT_OUT = "outputs_left_out"
"""The int64 parameter of an answer: how many outputs the model has beside those that were asked for."""


def not_registered(region: str) -> str:
    """The text of NOT_FOUND for shared memory that the server does not know.

    By it a client tells memory that the server lost from an unknown model or layer: on a stream a text is all there is.
    """
    return f"no shared memory region is registered as '{region[:64]}'"


_CLIENTS_REGION = re.compile(r"gatefuse-[0-9]+-[0-9a-f]{32}")


def is_clients_region(name: str) -> bool:
    """Whether our own client made a region.

    It holds a lock on the object (`flock`) as long as it may use the memory, and takes the object's name away when it
    is done with it. The object bears the region's name.
    """
    return _CLIENTS_REGION.fullmatch(name) is not None
