"""Models that come and go under load: no request is lost, none is answered by the wrong load."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from types import TracebackType
from typing import Self

import grpc
import numpy as np
import psutil
import pytest
from tests.integration.control import Control
from tests.integration.harness import CHECKPOINT, Service, Start, free_port, wait_until
from tests.integration.load import IDENTITY_COLUMNS, Load

from gatefuse.client.blocking import Client, InferenceError
from gatefuse.client.transport.retry import NO_RETRY
from gatefuse.commands.loadtest.tensors import TensorFile

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("model_control")]

BIG = {"hidden": 2048, "intermediate": 4096}
BIG_BYTES = 3 * 2048 * 4096 * 4


@pytest.fixture(scope="module")
def service(start: Start) -> Service:
    times = {"kind": "elementwise", "backend": "eager", "dtype": "fp32", "replicas": 2}
    return start(
        {
            "model_control": "explicit",
            "device": "cpu",
            "frontends": 2,
            "grpc_port": free_port(),
            "worker_threads": 1,
            "models": [
                {"name": "llama-ffn", "checkpoint": str(CHECKPOINT), "replicas": 2},
                {
                    "name": "identity",
                    "expression": "x * 1",
                    "columns": IDENTITY_COLUMNS,
                    **times,
                },
                {"name": "times", "expression": "x * k", "constants": {"k": 2.0}, **times},
                {"name": "big", "random": BIG, "dtype": "fp32", "backend": "fused"},
            ],
        }
    )


@pytest.fixture
def control(service: Service) -> Iterator[Control]:
    control = Control(service.url)
    yield control
    control.close()


class Times:
    """Callers that send numbers of their own to `times` and note by what each was multiplied, until the block ends."""

    def __init__(self, url: str, callers: int = 4) -> None:
        self.factors: Counter[float] = Counter()
        self.refused: Counter[str] = Counter()
        self.torn: list[str] = []
        self._url = url
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(callers)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "a request has no answer"

    def _run(self, caller: int) -> None:
        number = caller
        with Client(self._url, retry=NO_RETRY) as client:
            while not self._stop.is_set():
                number += 8
                x = np.full((1 + number % 7, 3), number, np.float32)
                try:
                    factors = np.unique(client.infer("times", x).output / x)
                except InferenceError as error:
                    self.refused[f"{error.code.name}: {error.details}"] += 1
                    time.sleep(0.01)
                    continue
                if len(factors) != 1:
                    self.torn.append(f"{number}: {factors}")
                self.factors[float(factors[0])] += 1


def _factor(service: Service) -> float:
    """What `times` multiplies by now; a new connection may be another frontend's."""
    with Client(service.url, retry=NO_RETRY) as client:
        return float(client.infer("times", np.ones((1, 3), np.float32)).output[0, 0])


def test_reloads_under_load_answer_every_request(
    service: Service, control: Control, tiny_llama: TensorFile
) -> None:
    with Load(service.url, tiny_llama) as load:
        # Eager bf16 is less exact than the load's bound allows; rows of the wrong type would be noise.
        for dtype in ("fp32", "bf16", "fp32"):
            control.load("llama-ffn", {"dtype": dtype})
            with Client(service.url) as client:
                assert client.model_metadata("llama-ffn").properties["dtype"] == dtype
        control.load("llama-ffn")
        control.load("identity", {"batching": {"max_batch_rows": 5}})
        control.load("identity")
    assert load.answered > 50
    assert load.answered == load.issued
    assert not load.wrong
    assert not load.failed


def test_an_answer_is_of_one_load_and_after_a_reload_of_the_new_one(
    service: Service, control: Control
) -> None:
    with Times(service.url) as times:
        for k in (3.0, 5.0, 7.0):
            control.load("times", {"constants": {"k": k}})
            assert {_factor(service) for _ in range(6)} == {k}
    control.load("times")
    assert _factor(service) == 2.0
    assert set(times.factors) <= {2.0, 3.0, 5.0, 7.0}
    assert times.factors[5.0]
    assert not times.refused
    assert not times.torn


def test_an_unload_under_load_refuses_and_loses_nothing(service: Service, control: Control) -> None:
    with Times(service.url) as times:
        for _ in range(3):
            control.unload("times")
            assert control.states()["times"] == ("UNAVAILABLE", "unloaded")
            with pytest.raises(InferenceError, match="UNAVAILABLE: model 'times' is not loaded"):
                _factor(service)
            control.load("times")
            assert {_factor(service) for _ in range(4)} == {2.0}
    assert set(times.factors) == {2.0}
    assert not times.torn
    assert set(times.refused) == {"UNAVAILABLE: model 'times' is not loaded"}


def test_the_rest_is_ready_while_a_model_is_unloaded(service: Service, control: Control) -> None:
    control.unload("times")
    control.unload("times")
    with Client(service.url, retry=NO_RETRY) as client:
        assert client.is_ready()
        assert not client.model_ready("times")
        with pytest.raises(InferenceError, match="UNAVAILABLE"):
            client.model_metadata("times")
    control.load("times")
    assert control.states()["times"] == ("READY", "")


def _described(service: Service, model: str) -> set[str]:
    """The gauges that have series of a model; frontends hand them over ten times a second."""
    return {name for name, labels in service.scrape().series if ("model", model) in labels} & {
        "gatefuse_model_info",
        "gatefuse_queue_capacity_rows",
        "gatefuse_queue_rows",
    }


def test_an_unloaded_model_is_not_described(service: Service, control: Control) -> None:
    before = service.scrape()
    assert len(_described(service, "times")) == 3
    control.unload("times")
    wait_until(lambda: not _described(service, "times"), 5, "gone")
    assert service.scrape().fallen_since(before) == []
    assert len(_described(service, "identity")) == 3
    control.load("times", {"dtype": "bf16"})
    wait_until(lambda: len(_described(service, "times")) == 3, 5, "there again")
    described = [
        dict(labels)["dtype"]
        for name, labels in service.scrape().series
        if name == "gatefuse_model_info" and ("model", "times") in labels
    ]
    assert described == ["bf16"]
    control.load("times")


def test_wider_rows_than_the_arena_held(service: Service, control: Control) -> None:
    wide = np.full((100, 50_000), 3, np.float32)
    control.load("times", {"max_columns": 50_000, "batching": {"max_batch_rows": 100}})
    with Client(service.url) as client:
        assert (client.infer("times", wide).output == 6).all()
    control.load("times")
    with Client(service.url) as client, pytest.raises(InferenceError, match="INVALID_ARGUMENT"):
        client.infer("times", wide)


def test_memory_is_freed(service: Service, control: Control) -> None:
    def held() -> int:
        return sum(psutil.Process(pid).memory_info().rss for pid in service.worker_pids())

    loaded = held()
    control.unload("big")
    assert held() < loaded - BIG_BYTES / 2
    control.load("big")
    assert control.states()["big"] == ("READY", "")


@pytest.mark.parametrize(
    ("name", "config", "text"),
    [
        ("llama-ffn", {"layers": [99]}, "which its weights do not have"),
        ("llama-ffn", {"kind": "geglu"}, "asks for the activation"),
        ("times", {"backend": "textbook"}, "an elementwise model has none"),
        ("times", {"nonsense": 1}, "config: nonsense: "),
        ("llama-ffn", {"checkpoint": "/tmp"}, "'checkpoint' cannot be given by a request"),
        ("times", {"name": "other"}, "'name' cannot be given by a request"),
        ("times", {"constants": {"k": {"file": "/x", "tensor": "t"}}}, "cannot name a file"),
        ("nobody", None, "no model is named 'nobody'"),
    ],
)
def test_a_load_that_fails_leaves_what_was_served(
    service: Service, control: Control, name: str, config: dict[str, object] | None, text: str
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        control.load(name, config)
    error: grpc.Call = caught.value  # type: ignore[assignment]
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert text in str(error.details())
    assert str(CHECKPOINT) not in str(error.details())
    assert _factor(service) == 2.0
    states = control.states()
    assert all(state == "READY" for state, _ in states.values())


def test_processes_that_die_come_back_with_what_is_loaded(
    service: Service, control: Control
) -> None:
    control.load("times", {"constants": {"k": 11.0}})
    control.unload("big")
    victims = {*service.worker_pids(), *service.frontend_pids()}
    for pid in victims:
        os.kill(pid, signal.SIGKILL)

    def back() -> bool:
        try:
            return _factor(service) == 11.0 and not victims & set(service.worker_pids())
        except InferenceError:
            return False

    wait_until(back, 120, "the service is back")
    fresh = Control(service.url)
    wait_until(lambda: fresh.states()["times"] == ("READY", ""), 60, "both workers are back")
    assert fresh.states()["big"] == ("UNAVAILABLE", "unloaded")
    fresh.load("times")
    fresh.load("big")
    assert _factor(service) == 2.0
    fresh.close()
