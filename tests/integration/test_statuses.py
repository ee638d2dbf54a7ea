"""Every way a call can end other than well, through a real client: its status, its text, its count, its traces."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from numpy.typing import NDArray
from tests.integration.harness import CHECKPOINT, Scrape, Service, Start, wait_until

from gatefuse.client.asynchronous import AioClient
from gatefuse.client.blocking import Client, InferenceError
from gatefuse.client.messages import method
from gatefuse.client.transport.retry import NO_RETRY
from gatefuse_protos import open_inference_pb2 as pb

Array: TypeAlias = NDArray[Any]
Change: TypeAlias = Callable[[pb.ModelInferRequest], object]

COLUMNS = 64
SLOW_COLUMNS = 2048
SLOW_ROWS = 64
# So many slow requests are always taken, and keep the worker busy for several times HASTY_TIMEOUT_MS.
SLOW_REQUESTS = 4
QUEUE_ROWS = SLOW_REQUESTS * SLOW_ROWS
IDENTITY_QUEUE_ROWS = 1024
MAX_MESSAGE_BYTES = 2 * 2**20
HASTY_TIMEOUT_MS = 50
CANCELS = 3000

Code = grpc.StatusCode


@pytest.fixture(scope="module")
def service(start: Start) -> Service:
    identity = {"kind": "elementwise", "expression": "x", "columns": COLUMNS, "dtype": "fp32"}
    slow = {
        "name": "slow",
        "random": {"hidden": SLOW_COLUMNS, "intermediate": 8192},
        "backend": "eager",
        "dtype": "fp32",
        "batching": {"max_batch_rows": SLOW_ROWS, "max_queue_rows": QUEUE_ROWS},
    }
    return start(
        {
            "device": "cpu",
            # One worker runs all models, one batch at a time: whatever comes after a slow batch waits.
            "worker_threads": 1,
            "max_message_bytes": MAX_MESSAGE_BYTES,
            "models": [
                {"name": "llama-ffn", "checkpoint": str(CHECKPOINT), "backend": "fused"},
                slow,
                {
                    **identity,
                    "name": "identity",
                    "batching": {"max_queue_rows": IDENTITY_QUEUE_ROWS},
                },
                {**identity, "name": "hasty", "batching": {"default_timeout_ms": HASTY_TIMEOUT_MS}},
                {
                    "name": "wide",
                    "kind": "elementwise",
                    "expression": "x * 2 + 3",
                    "dtype": "fp32",
                    "max_columns": 128,
                },
            ],
        }
    )


@pytest.fixture
def channel(service: Service) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(
        service.url,
        [
            ("grpc.max_receive_message_length", -1),
            ("grpc.max_send_message_length", -1),
            ("grpc.use_local_subchannel_pool", 1),
        ],
    ) as channel:
        yield channel


def _send(
    channel: grpc.Channel, message: bytes, name: str = "ModelInfer", timeout_s: float | None = 30
) -> tuple[grpc.StatusCode, str]:
    """Sends raw bytes to a method; returns how the call ended."""
    call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(method(name))
    try:
        call(message, timeout=timeout_s)
    except grpc.RpcError as error:
        ended: Any = error
        return ended.code(), ended.details()
    return Code.OK, ""


def _good() -> pb.ModelInferRequest:
    """A request that is answered: two rows for layer 1 of llama-ffn."""
    request = pb.ModelInferRequest(model_name="llama-ffn", id="ok")
    request.parameters["layer"].int64_param = 1
    request.inputs.add(name="hidden_states", datatype="BF16", shape=[2, 256])
    request.raw_input_contents.append(bytes(2 * 256 * 2))
    return request


def _to(model: str, shape: list[int]) -> Change:
    def change(request: pb.ModelInferRequest) -> None:
        request.model_name = model
        del request.parameters["layer"]
        del request.inputs[:], request.raw_input_contents[:]
        request.inputs.add(name="x", datatype="FP32", shape=shape)
        request.raw_input_contents.append(bytes(4 * max(0, shape[0] * shape[1])))

    return change


def _shape(*shape: int) -> Change:
    def change(request: pb.ModelInferRequest) -> None:
        del request.inputs[0].shape[:]
        request.inputs[0].shape.extend(shape)

    return change


def _set(**fields: Any) -> Change:
    def change(request: pb.ModelInferRequest) -> None:
        for name, value in fields.items():
            setattr(request, name, value)

    return change


def _set_input(**fields: Any) -> Change:
    def change(request: pb.ModelInferRequest) -> None:
        for name, value in fields.items():
            setattr(request.inputs[0], name, value)

    return change


def _raw(*contents: bytes) -> Change:
    def change(request: pb.ModelInferRequest) -> None:
        del request.raw_input_contents[:]
        request.raw_input_contents.extend(contents)

    return change


def _typed(field: str, count: int, datatype: str = "FP32", *, raw: bool = False) -> Change:
    def change(request: pb.ModelInferRequest) -> None:
        if not raw:
            del request.raw_input_contents[:]
        request.inputs[0].datatype = datatype
        getattr(request.inputs[0].contents, field).extend([1] * count)

    return change


def _layer(choice: str, value: Any) -> Change:
    def change(request: pb.ModelInferRequest) -> None:
        setattr(request.parameters["layer"], choice, value)

    return change


def _outputs(*names: str) -> Change:
    def change(request: pb.ModelInferRequest) -> None:
        for name in names:
            request.outputs.add(name=name)

    return change


BAD = Code.INVALID_ARGUMENT
# What is changed in a good request: the status, and the reason it is counted under.
BROKEN: dict[str, tuple[Change, grpc.StatusCode, str]] = {
    "unknown model": (_set(model_name="other"), Code.NOT_FOUND, "model"),
    "no model": (_set(model_name=""), BAD, "model"),
    "path as model": (_set(model_name="../tiny-llama"), BAD, "model"),
    "long model": (_set(model_name="a" * 10_000), BAD, "model"),
    "newline in model": (_set(model_name="llama-ffn\n"), BAD, "model"),
    "unknown version": (_set(model_version="2"), Code.NOT_FOUND, "model"),
    "no number as version": (_set(model_version="latest"), BAD, "model"),
    "digits of another script": (_set(model_version="١"), BAD, "model"),
    "long version": (_set(model_version="1" * 5000), BAD, "model"),
    "long id": (_set(id="i" * 257), BAD, "size"),
    "no layer": (lambda request: request.parameters.pop("layer"), BAD, "model"),
    "unknown layer": (_layer("int64_param", 4), Code.NOT_FOUND, "model"),
    "negative layer": (_layer("int64_param", -1), Code.NOT_FOUND, "model"),
    "text as layer": (_layer("string_param", "1"), BAD, "model"),
    "no input": (lambda request: request.inputs.pop(), BAD, "shape"),
    "two inputs": (lambda request: request.inputs.add(name="hidden_states"), BAD, "shape"),
    "other input": (_set_input(name="x"), BAD, "shape"),
    "other output": (_outputs("y"), BAD, "shape"),
    "output twice": (_outputs("output", "output"), BAD, "shape"),
    "integers": (_set_input(datatype="INT8"), BAD, "dtype"),
    "float64": (_set_input(datatype="FP64"), BAD, "dtype"),
    "lower case": (_set_input(datatype="bf16"), BAD, "dtype"),
    "no datatype": (_set_input(datatype=""), BAD, "dtype"),
    "one dimension": (_shape(512), BAD, "shape"),
    "three dimensions": (_shape(1, 2, 256), BAD, "shape"),
    "no dimension": (_shape(), BAD, "shape"),
    "no rows": (_shape(0, 256), BAD, "shape"),
    "negative rows": (_shape(-2, -256), BAD, "shape"),
    "variable rows": (_shape(-1, 256), BAD, "shape"),
    "other width": (_shape(4, 128), BAD, "shape"),
    "product overflows to the right size": (_shape(2**55 + 2, 256), BAD, "size"),
    "largest shape": (_shape(2**63 - 1, 2**63 - 1), BAD, "size"),
    "more rows than sent": (_shape(2000, 256), BAD, "size"),
    "too wide": (_to("wide", [1, 129]), BAD, "shape"),
    "no columns": (_to("wide", [1, 0]), BAD, "shape"),
    "more rows than the queue holds": (
        _to("identity", [IDENTITY_QUEUE_ROWS + 1, COLUMNS]),
        BAD,
        "size",
    ),
    "no data": (_raw(), BAD, "mismatch"),
    "two entries": (_raw(bytes(1024), b""), BAD, "mismatch"),
    "one byte short": (_raw(bytes(1023)), BAD, "size"),
    "one byte more": (_raw(bytes(1025)), BAD, "size"),
    "no bytes": (_raw(b""), BAD, "size"),
    "raw and typed": (_typed("fp32_contents", 512, raw=True), BAD, "mismatch"),
    "typed bf16": (_typed("fp32_contents", 512, "BF16"), BAD, "dtype"),
    "other typed field": (_typed("int_contents", 512), BAD, "mismatch"),
    "too few typed values": (_typed("fp32_contents", 511), BAD, "size"),
}


def _allowed(text: str) -> None:
    """Error texts name rules and limits: no path, no module, no trace of the code."""
    for internal in ("/", "Traceback", "gatefuse.", ".py", "Error", "0x"):
        assert internal not in text
    assert text
    assert len(text) < 200


def test_good_request_is_answered(channel: grpc.Channel) -> None:
    assert _send(channel, _good().SerializeToString()) == (Code.OK, "")


def test_broken_requests_name_their_rule(service: Service, channel: grpc.Channel) -> None:
    before = service.scrape_idle()
    wrong = {}
    for name, (change, status, _) in BROKEN.items():
        request = _good()
        change(request)
        code, text = _send(channel, request.SerializeToString())
        if code is not status:
            wrong[name] = (code.name, text)
        _allowed(text)
    assert wrong == {}
    after = service.scrape_idle()
    reasons = Counter(reason for _, _, reason in BROKEN.values())
    for reason, count in reasons.items():
        found = after.value("gatefuse_requests_invalid_total", reason=reason)
        assert found - before.value("gatefuse_requests_invalid_total", reason=reason) == count
    codes = Counter(status.name for _, status, _ in BROKEN.values())
    for code_name, count in codes.items():
        assert _requests(after, code_name) - _requests(before, code_name) == count
    # Nothing of them reached a queue.
    assert after.value("gatefuse_request_rows_sum") == before.value("gatefuse_request_rows_sum")
    assert _send(channel, _good().SerializeToString()) == (Code.OK, "")


def _requests(scrape: Scrape, code: str, name: str = "ModelInfer") -> float:
    return scrape.value("gatefuse_requests_total", method=name, code=code)


@pytest.mark.parametrize(
    "message",
    [
        b"\xff",
        b"\x0a\xff\xff\xff\xff\x0f",
        b"\x0a\x02\xc3\x28",
        bytes(100),
        random.Random(1).randbytes(5000),
    ],
    ids=["half a tag", "length beyond the end", "not UTF-8", "zeros", "noise"],
)
def test_what_is_no_message_is_the_clients_fault(
    service: Service, channel: grpc.Channel, message: bytes
) -> None:
    for name in ("ModelInfer", "ModelMetadata"):
        code, text = _send(channel, message, name)
        assert code is Code.INVALID_ARGUMENT
        _allowed(text)


def test_noise_inside_a_good_message(channel: grpc.Channel) -> None:
    """Any damage is the client's fault or does not matter; none is the server's."""
    good = _good().SerializeToString()
    draw = random.Random(2)
    ended: Counter[grpc.StatusCode] = Counter()
    for _ in range(500):
        damaged = bytearray(good)
        for _ in range(draw.randint(1, 4)):
            # The rows themselves may hold anything: what describes them is in front and behind.
            position = draw.choice([draw.randrange(64), -1 - draw.randrange(16)])
            damaged[position] = draw.randrange(256)
        code, text = _send(
            channel, bytes(damaged[: draw.choice([len(damaged), draw.randrange(80)])])
        )
        ended[code] += 1
        if code is not Code.OK:
            _allowed(text)
    assert set(ended) <= {Code.OK, Code.INVALID_ARGUMENT, Code.NOT_FOUND}
    assert ended[Code.INVALID_ARGUMENT] > 100


def test_other_methods(channel: grpc.Channel) -> None:
    for name in ("SystemSharedMemoryRegister", "Nothing"):
        assert _send(channel, b"", name)[0] is Code.UNIMPLEMENTED
    assert _send(channel, b"", "RepositoryModelLoad")[0] is Code.UNAVAILABLE
    request = pb.ModelReadyRequest(name="other").SerializeToString()
    assert _send(channel, request, "ModelReady")[0] is Code.NOT_FOUND
    request = pb.ModelMetadataRequest(name="identity", version="9").SerializeToString()
    assert _send(channel, request, "ModelMetadata")[0] is Code.NOT_FOUND


def test_message_above_the_limit(channel: grpc.Channel) -> None:
    code, _ = _send(channel, bytes(MAX_MESSAGE_BYTES + 1))
    assert code is Code.RESOURCE_EXHAUSTED
    assert _send(channel, _good().SerializeToString()) == (Code.OK, "")


def test_health(service: Service, channel: grpc.Channel) -> None:
    stub: Any = health_pb2_grpc.HealthStub(channel)
    for name in ("", pb.SERVICE_NAME):
        answer = stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=10)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


def _slow_rows(rows: int = SLOW_ROWS) -> Array:
    return np.ones((rows, SLOW_COLUMNS), np.float32)


@pytest.mark.asyncio
async def test_full_queue_refuses_and_loses_nothing(service: Service) -> None:
    before = service.scrape_idle()
    x = np.random.default_rng(0).standard_normal((24, SLOW_ROWS, SLOW_COLUMNS), np.float32)
    async with AioClient(service.url, timeout_s=60, retry=NO_RETRY) as client:
        expected = [(await client.infer("slow", rows)).output for rows in x[:3]]
        calls = [asyncio.create_task(client.infer("slow", x[i % 3])) for i in range(24)]
        # Overload is no illness: whoever asks is told that it is alive and ready.
        assert await client.is_live()
        assert await client.is_ready()
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
    answered, refused = 0, 0
    for i, outcome in enumerate(outcomes):
        if isinstance(outcome, InferenceError):
            assert outcome.code is Code.RESOURCE_EXHAUSTED
            assert outcome.details == f"the queue of the model is full (limit: {QUEUE_ROWS} rows)"
            refused += 1
        else:
            assert not isinstance(outcome, BaseException)
            np.testing.assert_array_equal(outcome.output, expected[i % 3])
            answered += 1
    # At least what the queue and the worker hold was taken.
    assert answered >= SLOW_REQUESTS
    assert refused > 0
    after = service.scrape_idle()
    assert (
        _requests(after, "RESOURCE_EXHAUSTED") - _requests(before, "RESOURCE_EXHAUSTED") == refused
    )
    shed = after.value("gatefuse_requests_shed_total", reason="queue_full")
    assert shed - before.value("gatefuse_requests_shed_total", reason="queue_full") == refused
    assert after.value("gatefuse_queue_capacity_rows", model="slow") == QUEUE_ROWS


def _launches(scrape: Scrape, model: str) -> float:
    return scrape.value("gatefuse_kernel_launches_total", model=model)


@pytest.mark.asyncio
async def test_expired_requests_are_never_launched(service: Service) -> None:
    before = service.scrape_idle()
    row = np.ones((1, COLUMNS), np.float32)
    async with AioClient(service.url, timeout_s=60, retry=NO_RETRY) as client:
        await client.model_metadata("identity")
        busy = [
            asyncio.create_task(client.infer("slow", _slow_rows())) for _ in range(SLOW_REQUESTS)
        ]
        await asyncio.sleep(0.03)
        # The shortest of them may end before a busy machine's service hears of them.
        late = await asyncio.gather(
            *(client.infer("identity", row, timeout_s=0.05 + 0.005 * i) for i in range(20)),
            return_exceptions=True,
        )
        for outcome in late:
            assert isinstance(outcome, InferenceError)
            assert outcome.code is Code.DEADLINE_EXCEEDED
        await asyncio.gather(*busy)
    after = service.scrape_idle()
    assert _launches(after, "identity") == _launches(before, "identity")
    assert _launches(after, "slow") - _launches(before, "slow") == 5 * SLOW_REQUESTS
    assert after.value("gatefuse_batch_rows_sum", model="identity") == before.value(
        "gatefuse_batch_rows_sum", model="identity"
    )
    late_there = _requests(after, "DEADLINE_EXCEEDED") - _requests(before, "DEADLINE_EXCEEDED")
    assert 0 < late_there <= 20


@pytest.mark.asyncio
async def test_calls_without_a_deadline_get_the_models_own(
    service: Service, channel: grpc.Channel
) -> None:
    before = service.scrape_idle()
    request = _good()
    _to("hasty", [1, COLUMNS])(request)
    message = request.SerializeToString()
    assert await asyncio.to_thread(_send, channel, message, timeout_s=None) == (Code.OK, "")
    async with AioClient(service.url, timeout_s=60, retry=NO_RETRY) as client:
        busy = [
            asyncio.create_task(client.infer("slow", _slow_rows())) for _ in range(SLOW_REQUESTS)
        ]
        await asyncio.sleep(0.03)
        code, text = await asyncio.to_thread(_send, channel, message, timeout_s=None)
        await asyncio.gather(*busy)
    assert code is Code.DEADLINE_EXCEEDED
    assert text == "deadline exceeded before the rows were computed"
    after = service.scrape_idle()
    assert _launches(after, "hasty") - _launches(before, "hasty") == 1
    shed = after.value("gatefuse_requests_shed_total", reason="deadline")
    assert shed - before.value("gatefuse_requests_shed_total", reason="deadline") == 1


@pytest.mark.slow
@pytest.mark.asyncio
async def test_random_cancels_leave_nothing_and_harm_nobody(service: Service) -> None:
    before = service.scrape_idle()
    draw = random.Random(3)
    counts: Counter[str] = Counter()
    async with AioClient(service.url, timeout_s=60, retry=NO_RETRY) as client:
        answers = {rows: (await client.infer("slow", _slow_rows(rows))).output for rows in (1, 2)}
        norms = {rows: float(np.linalg.norm(answer)) for rows, answer in answers.items()}

        async def leaver() -> None:
            number = counts["issued"] = counts["issued"] + 1
            slow = number % 5 == 0
            x = _slow_rows(1) if slow else np.full((2, COLUMNS), number, np.float32)
            call = asyncio.create_task(client.infer("slow" if slow else "identity", x))
            await asyncio.sleep(draw.uniform(0, 0.06))
            call.cancel()
            try:
                await call
                counts["answered"] += 1
            except asyncio.CancelledError:
                counts["cancelled"] += 1
            except InferenceError as error:
                counts[error.code.name] += 1

        async def leavers() -> None:
            while counts["issued"] < CANCELS:
                await leaver()

        async def mate(number: int) -> None:
            while counts["issued"] < CANCELS:
                number += 1000
                x = np.full((1 + number % 7, COLUMNS), number, np.float32)
                np.testing.assert_array_equal((await client.infer("identity", x)).output, x)
                if number % 3 == 0:
                    rows = 1 + number % 2
                    output = (await client.infer("slow", _slow_rows(rows))).output
                    # float32 sums come in another order when there is company.
                    assert np.linalg.norm(output - answers[rows]) <= norms[rows] * 1e-5
                counts["mates"] += 1

        await asyncio.gather(*(leavers() for _ in range(40)), *(mate(i) for i in range(4)))
    after = service.scrape_idle()
    assert counts["cancelled"] > CANCELS / 4
    assert set(counts) <= {"issued", "answered", "cancelled", "mates", "RESOURCE_EXHAUSTED"}
    assert counts["mates"] > 20
    for phase in ("queued", "executing"):
        found = after.value("gatefuse_cancelled_total", phase=phase)
        assert found > before.value("gatefuse_cancelled_total", phase=phase)
    assert _requests(after, "INTERNAL") == 0
    assert _requests(after, "UNKNOWN") == 0
    with Client(service.url) as client_after:
        for model, x in (("identity", np.ones((1, COLUMNS), np.float32)), ("slow", _slow_rows(1))):
            assert client_after.infer(model, x).cost.batch_rows == 1


def test_nothing_is_in_flight_at_the_end(service: Service) -> None:
    def idle() -> bool:
        found = service.scrape()
        return not found.value("gatefuse_requests_in_flight") + found.value("gatefuse_queue_rows")

    wait_until(idle, 5, "idle")
    assert service.scrape().value("gatefuse_replica_restarts_total") == 0
