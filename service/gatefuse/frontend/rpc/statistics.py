"""What the models did, in the words of the protocol."""

from collections.abc import Mapping

from gatefuse.frontend.requests import codec
from gatefuse.frontend.rpc.call import Context, Handler, unary
from gatefuse.frontend.rpc.catalogue import Catalogue
from gatefuse.frontend.statistics import Sums
from gatefuse_protos import open_inference_pb2 as pb


class Statistics:
    """ModelStatistics."""

    extensions = ("statistics",)

    def __init__(self, catalogue: Catalogue) -> None:
        """Tells of the models of `catalogue`."""
        self._catalogue = catalogue

    def methods(self) -> Mapping[str, Handler]:
        """The handler by name."""
        parse = pb.ModelStatisticsRequest.FromString
        return {"ModelStatistics": unary("ModelStatistics", parse, self._statistics)}

    async def _statistics(
        self, request: pb.ModelStatisticsRequest, context: Context
    ) -> pb.ModelStatisticsResponse:
        dispatcher = self._catalogue.dispatcher
        names = list(dispatcher.models)
        if request.name:
            names = [self._catalogue.loaded(request.name, request.version).name]
        response = pb.ModelStatisticsResponse()
        for name in names:
            response.model_stats.append(model_statistics(name, dispatcher.statistics.sums(name)))
        return response


def model_statistics(name: str, sums: Sums) -> pb.ModelStatistics:
    """A model's statistics: every answered request counts once, in each duration with the whole time of its batch."""
    count = sums.answered
    statistics = pb.ModelStatistics(
        name=name,
        version=codec.VERSION,
        last_inference=sums.last_ms,
        inference_count=sums.rows,
        execution_count=sums.batches,
        inference_stats=pb.InferStatistics(
            success=_duration(count, sums.answered_s),
            fail=_duration(sums.failed, sums.failed_s),
            queue=_duration(count, sums.queue_s),
            compute_input=_duration(count, sums.input_s),
            compute_infer=_duration(count, sums.compute_s),
            compute_output=_duration(count, sums.output_s),
        ),
    )
    for batch in sums.by_rows:
        statistics.batch_stats.add(
            batch_size=batch.rows,
            compute_input=_duration(batch.batches, batch.input_s),
            compute_infer=_duration(batch.batches, batch.compute_s),
            compute_output=_duration(batch.batches, batch.output_s),
        )
    return statistics


def _duration(count: int, seconds: float) -> pb.StatisticDuration:
    return pb.StatisticDuration(count=count, ns=round(seconds * 1e9))
