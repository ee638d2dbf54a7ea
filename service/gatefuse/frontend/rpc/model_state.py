"""What there is to know of one model before it is used: ready, its tensors."""

from collections.abc import Mapping

from gatefuse.frontend.requests import codec
from gatefuse.frontend.rpc.call import Context, Handler, unary
from gatefuse.frontend.rpc.catalogue import Catalogue
from gatefuse_protos import open_inference_pb2 as pb


class ModelState:
    """ModelReady and ModelMetadata."""

    extensions: tuple[str, ...] = ()

    def __init__(self, catalogue: Catalogue) -> None:
        """Answers from `catalogue`."""
        self._catalogue = catalogue

    def methods(self) -> Mapping[str, Handler]:
        """The handlers by name."""
        return {
            "ModelReady": unary("ModelReady", pb.ModelReadyRequest.FromString, self._ready),
            "ModelMetadata": unary(
                "ModelMetadata", pb.ModelMetadataRequest.FromString, self._metadata
            ),
        }

    async def _ready(
        self, request: pb.ModelReadyRequest, context: Context
    ) -> pb.ModelReadyResponse:
        self._catalogue.find(request.name, request.version)
        return pb.ModelReadyResponse(ready=self._catalogue.is_ready(request.name))

    async def _metadata(
        self, request: pb.ModelMetadataRequest, context: Context
    ) -> pb.ModelMetadataResponse:
        return codec.metadata(self._catalogue.loaded(request.name, request.version))
