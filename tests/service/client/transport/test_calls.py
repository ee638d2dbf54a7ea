"""Both transports against servers that fail as a script says."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import grpc
import pytest
from tests.service.grpc_serving import serving

from gatefuse.client.messages import InferenceError
from gatefuse.client.transport import rpcs
from gatefuse.client.transport.asynchronous import AioTransport
from gatefuse.client.transport.blocking import Transport
from gatefuse.client.transport.retry import RetryPolicy
from gatefuse_protos import open_inference_pb2 as pb

Code = grpc.StatusCode
Step = tuple[Code, str | None]
"""A status, and the push-back in milliseconds."""

POLICY = RetryPolicy(max_rounds=4, first_wait_s=0.02, longest_wait_s=0.05)
AWAY: Step = (Code.UNAVAILABLE, None)


class Scripted:
    """A server that fails step by step, and answers when its script has no more."""

    def __init__(self, name: str, script: list[Step], hangs_s: float) -> None:
        self.calls = 0
        self.url = ""
        self._name = name
        self._script = iter(script)
        self._hangs_s = hangs_s

    def answer(self, request: Any, context: Any) -> pb.ServerMetadataResponse:
        self.calls += 1
        time.sleep(self._hangs_s)
        code, pushback = next(self._script, (Code.OK, None))
        if code is not Code.OK:
            if pushback is not None:
                context.set_trailing_metadata((("grpc-retry-pushback-ms", pushback),))
            context.abort(code, "as the script says")
        return pb.ServerMetadataResponse(name=self._name)


@contextmanager
def _server(script: list[Step], name: str = "one", hangs_s: float = 0.0) -> Iterator[Scripted]:
    scripted = Scripted(name, script, hangs_s)
    handler: grpc.RpcMethodHandler[Any, Any] = grpc.unary_unary_rpc_method_handler(
        scripted.answer,
        request_deserializer=pb.ServerMetadataRequest.FromString,
        response_serializer=lambda message: message.SerializeToString(),
    )
    with serving({"ServerMetadata": handler}, threads=4) as scripted.url:
        yield scripted


def _blocking(
    urls: list[str], calls: int = 1, policy: RetryPolicy = POLICY, may_fail: int = 0, **options: Any
) -> list[str]:
    transport = Transport(urls, None, 5.0, policy)
    try:
        request = pb.ServerMetadataRequest()
        for _ in range(may_fail):
            with suppress(InferenceError):
                transport.call(rpcs.SERVER_METADATA, request, **options)
        return [transport.call(rpcs.SERVER_METADATA, request, **options).name for _ in range(calls)]
    finally:
        transport.close()


def _awaited(
    urls: list[str], calls: int = 1, policy: RetryPolicy = POLICY, may_fail: int = 0, **options: Any
) -> list[str]:
    async def run() -> list[str]:
        transport = AioTransport(urls, None, 5.0, policy)
        try:
            request = pb.ServerMetadataRequest()
            for _ in range(may_fail):
                with suppress(InferenceError):
                    await transport.call(rpcs.SERVER_METADATA, request, **options)
            return [
                (await transport.call(rpcs.SERVER_METADATA, request, **options)).name
                for _ in range(calls)
            ]
        finally:
            await transport.close()

    return asyncio.run(run())


Call = Callable[..., list[str]]
both = pytest.mark.parametrize("call", [_blocking, _awaited], ids=["blocking", "asyncio"])


@both
def test_unavailable_is_tried_again(call: Call) -> None:
    with _server([AWAY, AWAY, AWAY]) as server:
        assert call([server.url]) == ["one"]
        assert server.calls == 4


@both
def test_a_server_that_cancels_is_away(call: Call) -> None:
    """As one does to calls that it has not looked at when it ends."""
    with _server([(Code.CANCELLED, None)] * 4) as server:
        with pytest.raises(InferenceError) as caught:
            call([server.url])
        assert caught.value.code is Code.UNAVAILABLE
        assert call([server.url]) == ["one"]


@both
def test_an_answer_that_cannot_be_read(call: Call) -> None:
    handler: grpc.RpcMethodHandler[Any, Any] = grpc.unary_unary_rpc_method_handler(
        lambda request, context: b"\xff\xff\xff"
    )
    with serving({"ServerMetadata": handler}, threads=1) as url:
        with pytest.raises(InferenceError) as caught:
            call([url])
        assert caught.value.code is Code.INTERNAL


@both
def test_attempts_are_used_up(call: Call) -> None:
    with _server([AWAY] * 5) as server, pytest.raises(InferenceError) as caught:
        call([server.url])
    assert (caught.value.code, caught.value.details) == (Code.UNAVAILABLE, "as the script says")
    assert server.calls == 4


@both
def test_push_back_is_a_minimum(call: Call) -> None:
    with _server([(Code.RESOURCE_EXHAUSTED, "200")]) as server:
        started_s = time.monotonic()
        assert call([server.url]) == ["one"]
        assert time.monotonic() - started_s >= 0.2
        assert server.calls == 2


@both
@pytest.mark.parametrize(
    "step",
    [
        (Code.RESOURCE_EXHAUSTED, None),
        (Code.RESOURCE_EXHAUSTED, "-1"),
        (Code.UNAVAILABLE, "-1"),
        (Code.INVALID_ARGUMENT, None),
        (Code.INTERNAL, "5"),
    ],
    ids=str,
)
def test_what_will_not_pass_is_asked_once(call: Call, step: Step) -> None:
    with _server([step]) as server, pytest.raises(InferenceError) as caught:
        call([server.url])
    assert caught.value.code is step[0]
    assert server.calls == 1


@both
def test_wait_that_outlasts_the_deadline_is_not_begun(call: Call) -> None:
    started_s = time.monotonic()
    with (
        _server([(Code.RESOURCE_EXHAUSTED, "60000")]) as server,
        pytest.raises(InferenceError) as caught,
    ):
        call([server.url], timeout_s=30)
    assert caught.value.code is Code.RESOURCE_EXHAUSTED
    assert time.monotonic() - started_s < 10


@both
def test_call_without_retries_is_made_once(call: Call) -> None:
    with _server([AWAY]) as server, pytest.raises(InferenceError):
        call([server.url], retry=False)
    assert server.calls == 1


@both
def test_endpoints_take_calls_in_turn(call: Call) -> None:
    with _server([], "one") as first, _server([], "two") as second:
        assert call([first.url, second.url], calls=6) == ["one", "two"] * 3


@both
def test_calls_fail_over_and_leave_the_one_that_failed_alone(call: Call) -> None:
    with _server([(Code.UNAVAILABLE, "60000")], "one") as first, _server([], "two") as second:
        assert call([first.url, second.url], calls=6) == ["two"] * 6
        assert (first.calls, second.calls) == (1, 6)


@both
def test_one_that_hangs_is_left_alone(call: Call) -> None:
    with _server([], "one", hangs_s=1.0) as first, _server([], "two") as second:
        assert call([first.url, second.url], 4, timeout_s=0.4, may_fail=1) == ["two"] * 4
        assert (first.calls, second.calls) == (1, 4)


@both
def test_one_that_says_that_it_was_late_takes_its_turn(call: Call) -> None:
    late: list[Step] = [(Code.DEADLINE_EXCEEDED, None)]
    with _server(late, "one") as first, _server([], "two") as second:
        assert call([first.url, second.url], 2, may_fail=1) == ["two", "one"]


@both
def test_nobody_listens_at_one_endpoint(call: Call) -> None:
    with _server([], "two") as second:
        assert call(["127.0.0.1:1", second.url], calls=4, retry=False) == ["two"] * 4


def test_no_endpoint_is_refused() -> None:
    with pytest.raises(ValueError, match="no endpoint"):
        Transport([], None, 1.0, POLICY)


def test_fail_over_from_many_threads() -> None:
    with _server([AWAY] * 20, "one") as first, _server([], "two") as second:
        transport = Transport([first.url, second.url], None, 10.0, POLICY)
        with ThreadPoolExecutor(8) as pool:
            request = pb.ServerMetadataRequest()
            names = list(
                pool.map(lambda _: transport.call(rpcs.SERVER_METADATA, request).name, range(100))
            )
        transport.close()
    assert len(names) == 100
    assert set(names) <= {"one", "two"}
