"""The protocol through a real gRPC server on loopback, before a dispatcher whose worker is a fake."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from numpy.typing import NDArray
from prometheus_client import REGISTRY
from tests.service.bed import CONFIG, TIMEOUTS_S, TestBed, refused
from tests.service.fakes import DEVICE_S, ENTRY, MLP, FakeWorker, exact_rows

from gatefuse import __version__, metrics
from gatefuse.client.asynchronous import AioClient
from gatefuse.client.messages import InferenceError, Rows, infer_request
from gatefuse.commands import models
from gatefuse.frontend.dispatch.dispatcher import Dispatcher
from gatefuse.frontend.server import Server
from gatefuse.frontend.servicer import Servicer
from gatefuse.link.messages import Status
from gatefuse.run_folder.roster import Entry, Roster
from gatefuse.wire import Datatype, encode
from gatefuse_protos import open_inference_pb2 as pb

Code = grpc.StatusCode


def _value(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


OUTCOME_SERIES = {
    "gatefuse_requests_total": "{code}",
    "gatefuse_request_duration_seconds_count": "{outcome}",
    "gatefuse_requests_shed_total": "shed {reason}",
    "gatefuse_requests_invalid_total": "invalid {reason}",
    "gatefuse_cancelled_total": "cancelled {phase}",
}


class Counts:
    """How much each series of a method's outcomes grew since this was made."""

    def __init__(self, method: str = "ModelInfer") -> None:
        # Durations of methods that nobody waits for on every request go together.
        timed = method if method in ("ModelInfer", "ModelStreamInfer") else "other"
        self._methods = (method, timed)
        self._before = self._now()

    async def become(self, expected: dict[str, float], ignore: tuple[str, ...] = ()) -> None:
        """Checks what grew, by short names, and that nothing else did.

        A client may have its answer a moment before the handler that sent it counts it.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5):
                while self._grown(ignore) != expected:  # noqa: ASYNC110 - the server does not tell
                    await asyncio.sleep(0.002)
        assert self._grown(ignore) == expected

    def _grown(self, ignore: tuple[str, ...]) -> dict[str, float]:
        now = {name: value - self._before.get(name, 0.0) for name, value in self._now().items()}
        return {name: value for name, value in now.items() if value and name not in ignore}

    def _now(self) -> dict[str, float]:
        metrics.flush()
        return {
            OUTCOME_SERIES[sample.name].format_map(sample.labels): sample.value
            for family in REGISTRY.restricted_registry(OUTCOME_SERIES).collect()
            for sample in family.samples
            if sample.name in OUTCOME_SERIES
            and sample.labels.get("method", self._methods[0]) in self._methods
        }


@pytest.mark.asyncio
async def test_rows_and_their_cost(bed: TestBed) -> None:
    bed.worker()
    counts = Counts()
    labels = {"model": "ffn", "backend": "fused"}
    rows = _value("gatefuse_request_rows_sum", **labels)
    answered = _value("gatefuse_inference_duration_seconds_count", **labels)
    response = await bed.infer(11, id="r-7")
    assert response.raw_output_contents == [(2 * exact_rows(0, 11)).tobytes()]
    assert (response.id, response.model_name, response.model_version) == ("r-7", "ffn", "1")
    parameters = response.parameters
    assert parameters["batch_rows"].int64_param == 11
    assert parameters["kernel_launches"].int64_param == 2 * ENTRY.launches
    assert parameters["compute_us"].int64_param == 2 * DEVICE_S * 1e6
    await counts.become({"OK": 1, "ok": 1})
    assert _value("gatefuse_request_rows_sum", **labels) == rows + 11
    assert _value("gatefuse_inference_duration_seconds_count", **labels) == answered + 1
    assert _value("gatefuse_requests_in_flight", method="ModelInfer") == 0


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("changes", "code", "text", "count"),
    [
        ({"model_name": "other"}, Code.NOT_FOUND, "no model is named 'other'", "model"),
        ({"model_version": "2"}, Code.NOT_FOUND, "no version 2", "model"),
        ({"model_name": "Other"}, Code.NOT_FOUND, "no model is named 'Other'", "model"),
        ({"model_name": "a\n"}, Code.INVALID_ARGUMENT, "model_name must match", "model"),
        ({"model_version": "x"}, Code.INVALID_ARGUMENT, "model_version must be", "model"),
        ({"id": "i" * 257}, Code.INVALID_ARGUMENT, "id is longer than 256", "size"),
        ({"rows": 21}, Code.INVALID_ARGUMENT, "21 rows exceed the limit of 20 rows", "size"),
    ],
    ids=str,
)
async def test_a_wrong_request(
    bed: TestBed, changes: dict[str, Any], code: grpc.StatusCode, text: str, count: str
) -> None:
    bed.worker(max_queue_rows=20)
    counts = Counts()
    got, details = await refused(bed.infer(**changes))
    assert got is code
    assert text in details
    await counts.become({code.name: 1, "client": 1, f"invalid {count}": 1})


@pytest.mark.asyncio
async def test_a_full_queue(bed: TestBed) -> None:
    worker = bed.worker(eager=False, max_queue_rows=8)
    accepted = [bed.infer(8), bed.infer(8)]
    await asyncio.wait_for(worker.got_batch.wait(), 5)
    async with asyncio.timeout(5):
        while "rows={}" in repr(bed.dispatcher):  # noqa: ASYNC110 - the server does not tell
            await asyncio.sleep(0.002)
    counts = Counts()
    code, text = await refused(bed.infer(1))
    assert (code, text) == (
        Code.RESOURCE_EXHAUSTED,
        "the queue of the model is full (limit: 8 rows)",
    )
    await counts.become({"RESOURCE_EXHAUSTED": 1, "shed": 1, "shed queue_full": 1})
    for _ in accepted:
        while not worker.waiting:  # noqa: ASYNC110 - the fake does not tell
            await asyncio.sleep(0.002)
        worker.finish()
    for call in accepted:
        assert (await call).raw_output_contents


@pytest.mark.asyncio
async def test_a_clients_deadline(bed: TestBed) -> None:
    worker = bed.worker(eager=False)
    counts = Counts()
    code, _ = await refused(bed.infer(timeout=0.05))
    assert code is Code.DEADLINE_EXCEEDED
    # Whichever of the two timers is first, gRPC's or the server's own, it is the same status and outcome.
    await counts.become(
        {"DEADLINE_EXCEEDED": 1, "shed": 1}, ignore=("shed deadline", "cancelled executing")
    )
    # The rows were at the worker: its answer finds nobody and harms nobody.
    worker.finish()
    assert repr(bed.dispatcher).startswith("Dispatcher(requests=0, Batcher(rows={}")


@pytest.mark.asyncio
async def test_the_models_own_deadline_holds_for_clients_without_one(bed: TestBed) -> None:
    bed.worker(eager=False)
    TIMEOUTS_S["ffn"] = 0.02
    try:
        counts = Counts()
        code, text = await refused(bed.infer(timeout=None))
    finally:
        TIMEOUTS_S["ffn"] = 30.0
    assert code is Code.DEADLINE_EXCEEDED
    assert text == "deadline exceeded before the rows were computed"
    await counts.become({"DEADLINE_EXCEEDED": 1, "shed": 1, "shed deadline": 1})


@pytest.mark.asyncio
@pytest.mark.parametrize("timeout", [1e9, 7e9])
async def test_the_furthest_deadline(bed: TestBed, timeout: float) -> None:
    bed.worker()
    assert (await bed.infer(timeout=timeout)).raw_output_contents


@pytest.mark.asyncio
async def test_a_client_that_leaves(bed: TestBed) -> None:
    worker = bed.worker(eager=False)
    counts = Counts()
    call = bed.infer()
    await asyncio.wait_for(worker.got_batch.wait(), 5)
    call.cancel()
    await counts.become({"CANCELLED": 1, "client": 1, "cancelled executing": 1})
    worker.finish()


@pytest.mark.asyncio
async def test_a_failed_batch(bed: TestBed) -> None:
    worker = bed.worker(eager=False)
    counts = Counts()
    call = bed.infer()
    await asyncio.wait_for(worker.got_batch.wait(), 5)
    worker.finish(Status.FAILED)
    assert await refused(call) == (Code.INTERNAL, "the batch could not be computed")
    await counts.become({"INTERNAL": 1, "server": 1})


@pytest.mark.asyncio
async def test_a_lost_worker(bed: TestBed) -> None:
    bed.worker().die()
    counts = Counts()
    assert await refused(bed.infer()) == (Code.UNAVAILABLE, "no worker is ready for the model")
    await counts.become({"UNAVAILABLE": 1, "shed": 1, "shed no_replica": 1})


@pytest.mark.asyncio
async def test_before_a_model_is_loaded(bed: TestBed) -> None:
    counts = Counts()
    assert await refused(bed.infer()) == (Code.UNAVAILABLE, "model 'ffn' is still loading")
    await counts.become({"UNAVAILABLE": 1, "shed": 1, "shed no_replica": 1})
    code, _ = await refused(bed.infer(model_name="other"))
    assert code is Code.NOT_FOUND
    code, _ = await refused(bed.call("ModelMetadata", name="ffn"))
    assert code is Code.UNAVAILABLE


@pytest.mark.asyncio
async def test_an_unloaded_model(bed: TestBed) -> None:
    bed.worker()
    (config,) = CONFIG.models
    entry = Entry(config=config, index=0, is_loaded=False, replicas=("worker-0.sock",))
    bed.servicer.catalogue.roster = Roster(entries=(entry,))
    bed.dispatcher.choose({})
    counts, others = Counts(), Counts("ModelMetadata")
    assert await refused(bed.infer()) == (Code.UNAVAILABLE, "model 'ffn' is not loaded")
    await counts.become({"UNAVAILABLE": 1, "shed": 1, "shed unloaded": 1})
    # Whoever only asks about it is not among the refused inference calls.
    await refused(bed.call("ModelMetadata", name="ffn"))
    await others.become({"UNAVAILABLE": 1, "shed": 1, "shed unloaded": 1})
    await counts.become({"UNAVAILABLE": 1, "shed": 1, "shed unloaded": 1})


@pytest.mark.asyncio
async def test_a_draining_server(bed: TestBed) -> None:
    bed.worker()
    await bed.dispatcher.drain(timeout_s=5)
    counts = Counts()
    assert await refused(bed.infer()) == (Code.UNAVAILABLE, "the server is draining")
    await counts.become({"UNAVAILABLE": 1, "shed": 1, "shed draining": 1})
    assert not (await bed.call("ServerReady")).ready
    assert not (await bed.call("ModelReady", name="ffn")).ready
    assert (await bed.call("ServerLive")).live
    index = (await bed.call("RepositoryIndex")).models
    assert {(model.state, model.reason) for model in index} == {
        ("UNAVAILABLE", "the server is draining")
    }


class Broken(Dispatcher):
    """A dispatcher with a fault of its own."""

    async def infer(self, *arguments: Any) -> Any:
        raise RuntimeError("secret: /etc/passwd")


@pytest.mark.asyncio
async def test_an_unknown_error_shows_nothing_of_itself(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bed = TestBed(Broken(asyncio.get_running_loop()))
    await bed.start()
    bed.worker()
    counts = Counts()
    assert await refused(bed.infer()) == (Code.INTERNAL, "internal error")
    await counts.become({"INTERNAL": 1, "server": 1})
    assert "secret" in caplog.text
    await bed.stop()


@pytest.mark.asyncio
async def test_a_message_above_the_limit(bed: TestBed) -> None:
    bed.worker()
    shape = (65536 // 12 + 1, 3)
    rows = Rows(bytes(shape[0] * shape[1] * 4), shape, Datatype.FP32)
    message = infer_request("ffn", {"hidden_states": rows})
    code, text = await refused(bed.call("ModelInfer", message=message))
    assert code is Code.RESOURCE_EXHAUSTED
    assert "65536" in text


@pytest.mark.asyncio
async def test_an_answer_above_the_limit_is_refused_before_it_is_computed(bed: TestBed) -> None:
    worker = bed.worker()
    counts = Counts()
    # The request fits; the answer, which tells its cost, does not.
    shape = (65400 // 12, 3)
    rows = Rows(bytes(shape[0] * shape[1] * 4), shape, Datatype.FP32)
    message = infer_request("ffn", {"hidden_states": rows})
    code, text = await refused(bed.call("ModelInfer", message=message))
    assert code is Code.INVALID_ARGUMENT
    assert "more than max_message_bytes (65536): ask for fewer outputs or rows" in text
    assert worker.sent == []
    await counts.become({code.name: 1, "client": 1, "invalid size": 1})


@pytest.mark.asyncio
async def test_what_the_server_says_of_itself(bed: TestBed) -> None:
    assert (await bed.call("ServerLive")).live
    metadata = await bed.call("ServerMetadata")
    assert (metadata.name, metadata.version) == ("gatefuse", __version__)
    assert list(metadata.extensions) == [
        *("binary_tensor_data", "parameters", "schedule_policy"),
        *("model_configuration", "statistics"),
    ]


@pytest.mark.asyncio
async def test_readiness_follows_the_workers(bed: TestBed) -> None:
    async def seen() -> list[bool]:
        return [
            (await bed.call("ServerReady")).ready,
            (await bed.call("ModelReady", name="ffn")).ready,
            (await bed.call("ModelReady", name="deep", version="1")).ready,
        ]

    assert await seen() == [False, False, False]
    part = FakeWorker(bed.dispatcher, {"ffn": MLP})
    part.connect()
    assert await seen() == [False, True, False]
    rest = bed.worker()
    assert await seen() == [True, True, True]
    rest.die()
    assert await seen() == [False, True, False]


@pytest.mark.asyncio
@pytest.mark.parametrize("method", ["ModelReady", "ModelMetadata"])
@pytest.mark.parametrize(
    ("name", "version", "code"),
    [
        ("other", "", Code.NOT_FOUND),
        ("ffn", "2", Code.NOT_FOUND),
        ("ffn", "new", Code.INVALID_ARGUMENT),
        ("", "", Code.INVALID_ARGUMENT),
    ],
)
@pytest.mark.parametrize("loaded", [True, False])
async def test_a_model_that_is_not_there(
    bed: TestBed, method: str, name: str, version: str, code: grpc.StatusCode, loaded: bool
) -> None:
    if loaded:
        bed.worker()
    counts = Counts(method)
    got, _ = await refused(bed.call(method, name=name, version=version))
    assert got is code
    await counts.become({code.name: 1, "client": 1, "invalid model": 1})


@pytest.mark.asyncio
async def test_metadata_of_a_model(bed: TestBed) -> None:
    bed.worker()
    metadata = await bed.call("ModelMetadata", name="scale", version="1")
    assert (metadata.name, metadata.inputs[0].name, metadata.outputs[0].name) == ("scale", "x", "y")
    assert metadata.properties["backend"] == "eager"


@pytest.mark.asyncio
async def test_the_index_of_models(bed: TestBed) -> None:
    async def index(**fields: Any) -> list[tuple[str, str, str]]:
        models = (await bed.call("RepositoryIndex", **fields)).models
        return [(model.name, model.version, model.state) for model in models]

    loading = [(name, "1", "LOADING") for name in ("ffn", "deep", "scale")]
    assert await index() == loading
    assert await index(ready=True) == []
    part = FakeWorker(bed.dispatcher, {"ffn": MLP})
    part.connect()
    assert await index() == [("ffn", "1", "READY"), *loading[1:]]
    assert await index(ready=True) == [("ffn", "1", "READY")]
    part.die()
    assert await index() == [("ffn", "1", "UNAVAILABLE"), *loading[1:]]
    code, _ = await refused(bed.call("RepositoryIndex", repository_name="other"))
    assert code is Code.UNIMPLEMENTED


@pytest.mark.asyncio
async def test_a_method_that_is_not_there(bed: TestBed) -> None:
    method: Any = bed.channel.unary_unary(f"/{pb.SERVICE_NAME}/ModelLoad")
    code, _ = await refused(method(b""))
    assert code is Code.UNIMPLEMENTED


@pytest.mark.asyncio
async def test_health_is_not_serving_until_told(bed: TestBed) -> None:
    stub: Any = health_pb2_grpc.HealthStub(bed.channel)

    async def status(service: str) -> str:
        request = health_pb2.HealthCheckRequest(service=service)
        answer = (await stub.Check(request)).status
        return health_pb2.HealthCheckResponse.ServingStatus.Name(answer)

    for service in ("", pb.SERVICE_NAME):
        assert await status(service) == "NOT_SERVING"
    await bed.server.set_serving(True)
    for service in ("", pb.SERVICE_NAME):
        assert await status(service) == "SERVING"
    await bed.server.set_serving(False)
    assert await status("") == "NOT_SERVING"
    code, _ = await refused(stub.Check(health_pb2.HealthCheckRequest(service="other")))
    assert code is Code.NOT_FOUND


@pytest.mark.asyncio
async def test_reflection_lists_and_describes_the_service(bed: TestBed) -> None:
    channel: Any = bed.channel  # its stubs know only the channels of threads
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)

    async def ask(**fields: Any) -> Any:
        request = reflection_pb2.ServerReflectionRequest(**fields)
        async for response in stub.ServerReflectionInfo(iter([request])):
            return response
        raise AssertionError("no answer")

    listed = await ask(list_services="")
    assert {service.name for service in listed.list_services_response.service} == {
        "inference.GRPCInferenceService",
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
    }
    described = await ask(file_containing_symbol=pb.SERVICE_NAME)
    assert described.file_descriptor_response.file_descriptor_proto == [pb.DESCRIPTOR.serialized_pb]


@pytest.mark.asyncio
async def test_a_taken_port_is_an_error(bed: TestBed) -> None:
    port = int(bed.url.rpartition(":")[2])
    second = Server(
        Servicer(bed.dispatcher, TIMEOUTS_S, CONFIG.max_message_bytes),
        CONFIG.with_overrides({"grpc_port": port}),
    )
    with pytest.raises(RuntimeError, match="Failed to bind"):
        await second.start()
    await second.stop(0)


@pytest.mark.asyncio
@pytest.mark.parametrize("shape", [(1, 3), (2, 2, 3), (20, 3)], ids=str)
async def test_our_own_client_gets_its_shape_back(bed: TestBed, shape: tuple[int, ...]) -> None:
    bed.worker()
    rows = int(np.prod(shape[:-1]))
    x: NDArray[np.float32] = exact_rows(0, rows).reshape(shape)
    async with AioClient(bed.url) as client:
        result = await client.infer("ffn", x)
        np.testing.assert_array_equal(result.output, 2 * x, strict=True)
        assert result.cost.batch_rows == rows
        assert result.cost.backend == "fused"
        with pytest.raises(InferenceError) as caught:
            await client.infer("deep", x)
    assert caught.value.code is Code.INVALID_ARGUMENT


@pytest.mark.asyncio
async def test_typed_contents_give_the_same_answer(bed: TestBed) -> None:
    bed.worker()
    x = exact_rows(3, 2)
    message = pb.ModelInferRequest(model_name="ffn")
    tensor = message.inputs.add(name="hidden_states", datatype="FP32", shape=x.shape)
    tensor.contents.fp32_contents.extend(x.ravel().tolist())
    response = await bed.call("ModelInfer", message=message)
    assert response.raw_output_contents == [encode(2 * x, Datatype.FP32)]


@pytest.mark.asyncio
async def test_the_models_command(bed: TestBed, capsys: pytest.CaptureFixture[str]) -> None:
    bed.worker()
    assert await asyncio.to_thread(models.run, bed.url, False) == 0
    header, _, *lines = capsys.readouterr().out.splitlines()
    assert header.split() == [*models.COLUMNS[:-1], "what", "runs"]
    assert lines[1].split() == [
        *("deep", "READY", "swiglu", "fused", "fp16", "3", "0,2,5", "0", "0"), *("fused:", "a", "fake"),
    ]  # fmt: skip
    assert lines[2].split()[:6] == ["scale", "READY", "elementwise", "eager", "fp32", "1..16"]


@pytest.mark.asyncio
async def test_the_models_command_as_json(bed: TestBed, capsys: pytest.CaptureFixture[str]) -> None:
    async def told() -> dict[str, Any]:
        assert await asyncio.to_thread(models.run, bed.url, True) == 0
        return {model["name"]: model for model in json.loads(capsys.readouterr().out)}

    loading = (await told())["ffn"]
    assert (loading["ready"], loading["state"]) == (False, "LOADING")
    assert loading["config"] is loading["statistics"] is None
    bed.worker()
    await bed.infer(3)
    ffn = (await told())["ffn"]
    assert (ffn["ready"], ffn["state"], ffn["reason"], ffn["version"]) == (True, "READY", "", "1")
    assert ffn["inputs"][0]["name"] == "hidden_states"
    assert ffn["config"]["name"] == "ffn"
    # 64-bit integers are texts in protobuf's JSON.
    assert ffn["statistics"]["inference_count"] == "3"
    assert ffn["statistics"]["inference_stats"]["success"]["count"] == "1"


TRITON = """
import asyncio
{first}
import grpc
import numpy as np
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from gatefuse.config import ModelConfig, RandomWeights, ServiceConfig
from gatefuse.frontend.dispatch.dispatcher import Dispatcher
from gatefuse.frontend.server import Server
from gatefuse.frontend.servicer import Servicer
{last}
from tests.service.fakes import MODELS, FakeWorker, exact_rows

def use(url):
    with grpc.insecure_channel(url) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        assert "inference.GRPCInferenceService" in database.get_services()
        file = database.FindFileContainingSymbol("inference.GRPCInferenceService")
        assert file.package == "inference"
    x = exact_rows(0, 5)
    with triton.InferenceServerClient(url) as client:
        assert client.is_server_live() and client.is_server_ready()
        tensor = triton.InferInput("hidden_states", list(x.shape), "FP32")
        tensor.set_data_from_numpy(x)
        result = client.infer("ffn", [tensor])
        assert np.array_equal(result.as_numpy("output"), 2 * x)

async def main():
    loop = asyncio.get_running_loop()
    dispatcher = Dispatcher(loop)
    FakeWorker(dispatcher, MODELS, eager=True).connect()
    models = (ModelConfig(name="ffn", random=RandomWeights(hidden=3, intermediate=8)),)
    server = Server(
        Servicer(dispatcher, dict.fromkeys(MODELS, 30.0), 2**20), ServiceConfig(models=models, grpc_port=0)
    )
    url = f"127.0.0.1:{{await server.start()}}"
    await asyncio.to_thread(use, url)
    await server.stop(0)
    print("served")

asyncio.run(main())
"""
IMPORT_TRITON = "import tritonclient.grpc as triton"


@pytest.mark.parametrize("order", ["before", "after"])
def test_tritons_client_in_the_same_process(order: str) -> None:
    first, last = (IMPORT_TRITON, "") if order == "before" else ("", IMPORT_TRITON)
    result = subprocess.run(
        [sys.executable, "-c", TRITON.format(first=first, last=last)],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == "served\n"
