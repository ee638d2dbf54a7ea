"""Inference, one request a call; and what that has in common with requests on a stream."""

import time
from collections.abc import Mapping

from gatefuse.frontend.requests import answers, codec, raw_contents
from gatefuse.frontend.requests.codec import InferRequest
from gatefuse.frontend.rpc.call import Context, Handler, followed, remaining_s
from gatefuse.frontend.rpc.catalogue import Catalogue
from gatefuse.frontend.telemetry import Exchange


class Infer:
    """ModelInfer."""

    extensions = ("binary_tensor_data", "parameters", "schedule_policy")

    def __init__(self, catalogue: Catalogue) -> None:
        """Runs the models of `catalogue`."""
        self._catalogue = catalogue

    def methods(self) -> Mapping[str, Handler]:
        """The handler by name."""
        observer = self._catalogue.observer
        return {"ModelInfer": followed("ModelInfer", raw_contents.parse, self._infer, observer)}

    async def _infer(
        self, parsed: raw_contents.Parsed, context: Context, exchange: Exchange
    ) -> bytes:
        started_s = time.monotonic()
        dispatcher = self._catalogue.dispatcher
        exchange.asks(parsed[0])
        try:
            request, deadline_s = checked(self._catalogue, parsed, remaining_s(context), started_s)
            outputs, cost = await dispatcher.infer(request, deadline_s, exchange)
            exchange.encode_s = time.monotonic()
            return answers.encode(request, outputs, cost)
        except BaseException:
            dispatcher.statistics.failed(parsed[0].model_name, time.monotonic() - started_s)
            raise


def checked(
    catalogue: Catalogue,
    parsed: raw_contents.Parsed,
    left_s: float | None,
    now_s: float,
    frame_bytes: int = 0,
) -> tuple[InferRequest, float]:
    """A request that keeps every rule, and its deadline; `left_s` is what its call has left, None if it set no limit.

    `frame_bytes` is what its answer travels in; see `answers.check_answer`.

    Raises:
        ServiceError: it breaks a rule, or its model is not loaded.
    """
    message, raw = parsed
    models = catalogue.dispatcher.models
    if message.model_name not in models:
        catalogue.loaded(message.model_name, message.model_version)
    request = codec.decode(message, models, raw, catalogue.regions)
    answers.check_answer(request, catalogue.max_message_bytes, frame_bytes)
    if left_s is None:
        left_s = catalogue.default_timeouts_s[request.model.name]
    return request, now_s + left_s
