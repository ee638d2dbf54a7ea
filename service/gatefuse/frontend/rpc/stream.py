"""Inference on a stream: many requests at once over one call, each answered as soon as it is ready."""

import asyncio
from collections.abc import Mapping
from functools import partial

import grpc

from gatefuse import metrics
from gatefuse.errors import Draining
from gatefuse.frontend.rpc.call import Context, Handler, abort, is_late, remaining_s
from gatefuse.frontend.rpc.catalogue import Catalogue
from gatefuse.frontend.rpc.stream_requests import METHOD, StreamRequests

# A client that wants a request's error to end the stream with a real status says so in its metadata.
ERROR_METADATA = "triton_grpc_error"


class StreamInfer:
    """ModelStreamInfer."""

    extensions: tuple[str, ...] = ()

    def __init__(self, catalogue: Catalogue) -> None:
        """Runs the models of `catalogue`."""
        self._catalogue = catalogue
        self._series = metrics.RpcMetrics(METHOD)
        self._open: set[StreamRequests] = set()
        self._readers: set[asyncio.Task[None]] = set()  # the loop itself keeps no task alive

    def methods(self) -> Mapping[str, Handler]:
        """The handler by name."""
        handler: Handler = grpc.stream_stream_rpc_method_handler(self._serve)
        return {METHOD: handler}

    def close(self) -> None:
        """Ends every stream as soon as what it was asked is answered: the server is on its way out."""
        for requests in self._open:
            requests.end(Draining())

    async def _serve(self, _: object, context: Context) -> None:
        """One stream: this task writes, another one reads."""
        requests = StreamRequests(
            *(self._catalogue, self._series, partial(remaining_s, context)),
            _ends_at_error(context),
            context.invocation_metadata() or (),
        )
        self._open.add(requests)
        reader = asyncio.get_running_loop().create_task(_read(requests, context))
        self._readers.add(reader)
        reader.add_done_callback(self._readers.discard)
        try:
            while (answer := await requests.next_answer()) is not None:
                await context.write(answer)
                requests.written()
        except grpc.aio.InternalError:
            return  # what could not be written is for a client that has gone
        finally:
            self._open.discard(requests)
            requests.abandon(late=is_late(context))
        if requests.failure is not None:
            await abort(context, *requests.failure)


async def _read(requests: StreamRequests, context: Context) -> None:
    """Reads until the client has no more to ask, or the call is over: then a read that waits ends too."""
    try:
        while await requests.room():
            message = await context.read()
            if message is grpc.aio.EOF:
                return
            requests.take(message)
    except (grpc.aio.AbortError, grpc.aio.UsageError):
        return  # the writer has ended the call
    finally:
        requests.end()


def _ends_at_error(context: Context) -> bool:
    metadata = context.invocation_metadata() or ()
    return any(key == ERROR_METADATA and value == "true" for key, value in metadata)
