"""What the server says of itself: live, ready, its extensions."""

from collections.abc import Callable, Mapping, Sequence

from gatefuse import __version__
from gatefuse.frontend.rpc.call import Context, Handler, unary
from gatefuse.frontend.rpc.catalogue import Catalogue
from gatefuse_protos import open_inference_pb2 as pb

SERVER_NAME = "gatefuse"


class ServerState:
    """ServerLive, ServerReady and ServerMetadata."""

    extensions: tuple[str, ...] = ()

    def __init__(self, catalogue: Catalogue, all_extensions: Callable[[], Sequence[str]]) -> None:
        """`all_extensions` are those of every topic that is on."""
        self._catalogue = catalogue
        self._all_extensions = all_extensions

    def methods(self) -> Mapping[str, Handler]:
        """The handlers by name."""
        return {
            "ServerLive": unary("ServerLive", pb.ServerLiveRequest.FromString, self._live),
            "ServerReady": unary("ServerReady", pb.ServerReadyRequest.FromString, self._ready),
            "ServerMetadata": unary(
                "ServerMetadata", pb.ServerMetadataRequest.FromString, self._metadata
            ),
        }

    async def _live(self, request: pb.ServerLiveRequest, context: Context) -> pb.ServerLiveResponse:
        return pb.ServerLiveResponse(live=True)

    async def _ready(
        self, request: pb.ServerReadyRequest, context: Context
    ) -> pb.ServerReadyResponse:
        return pb.ServerReadyResponse(ready=self._catalogue.ready)

    async def _metadata(
        self, request: pb.ServerMetadataRequest, context: Context
    ) -> pb.ServerMetadataResponse:
        extensions = self._all_extensions()
        return pb.ServerMetadataResponse(
            name=SERVER_NAME, version=__version__, extensions=extensions
        )
