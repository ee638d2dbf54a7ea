"""RepositoryIndex, RepositoryModelLoad and RepositoryModelUnload: what they take, and what they pass on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio
from tests.service.bed import CONFIG, TIMEOUTS_S, TestBed, refused

from gatefuse.errors import InvalidRequest
from gatefuse.frontend.dispatch.dispatcher import Dispatcher
from gatefuse.frontend.server import Server
from gatefuse.frontend.servicer import Control, Servicer
from gatefuse.run_folder.roster import Entry, Roster
from gatefuse_protos import open_inference_pb2 as pb

INVALID = grpc.StatusCode.INVALID_ARGUMENT


class FakeControl:
    """Notes what it is asked for; has no model "broken"."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    async def load(self, name: str, config: str | None) -> None:
        self.asked.append(("load", name, config))
        if name == "broken":
            raise InvalidRequest("model", "no such luck")

    async def unload(self, name: str) -> None:
        self.asked.append(("unload", name))

    async def set_logging(self, changes: dict[str, Any]) -> None:
        self.asked.append(("log", changes))

    async def set_trace(self, model: str, changes: dict[str, list[str]]) -> None:
        self.asked.append(("trace", model, changes))


class ControlledBed(TestBed):
    """A server whose models and settings may be changed."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        super().__init__(dispatcher)
        self.control = FakeControl()
        control = Control(self.control, self.control, "traces.jsonl")
        self.servicer = Servicer(dispatcher, TIMEOUTS_S, CONFIG.max_message_bytes, control=control)
        self.server = Server(self.servicer, CONFIG)


@pytest_asyncio.fixture
async def controlled() -> AsyncIterator[ControlledBed]:
    bed = ControlledBed(Dispatcher(asyncio.get_running_loop()))
    await bed.start()
    yield bed
    await bed.stop()


def _text(text: str) -> pb.ModelRepositoryParameter:
    return pb.ModelRepositoryParameter(string_param=text)


@pytest.mark.asyncio
@pytest.mark.parametrize("method", ["RepositoryModelLoad", "RepositoryModelUnload"])
async def test_off_unless_the_operator_wants_it(bed: TestBed, method: str) -> None:
    code, text = await refused(bed.call(method, model_name="ffn"))
    assert code is grpc.StatusCode.UNAVAILABLE
    assert "--model-control explicit" in text
    metadata = await bed.call("ServerMetadata")
    assert "model_repository" not in metadata.extensions


@pytest.mark.asyncio
async def test_a_load_and_an_unload_are_passed_on(controlled: ControlledBed) -> None:
    await controlled.call("RepositoryModelLoad", model_name="ffn")
    config = {"config": _text('{"dtype": "fp32"}')}
    await controlled.call("RepositoryModelLoad", model_name="ffn", parameters=config)
    dependents = {"unload_dependents": pb.ModelRepositoryParameter(bool_param=True)}
    await controlled.call("RepositoryModelUnload", model_name="ffn", parameters=dependents)
    assert controlled.control.asked == [
        ("load", "ffn", None), ("load", "ffn", '{"dtype": "fp32"}'), ("unload", "ffn"),
    ]  # fmt: skip
    code, text = await refused(controlled.call("RepositoryModelLoad", model_name="broken"))
    assert (code, text) == (INVALID, "no such luck")
    extensions = (await controlled.call("ServerMetadata")).extensions
    assert {"model_repository", "model_repository(unload_dependents)"} <= set(extensions)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("method", "fields", "status"),
    [
        ("RepositoryIndex", {"repository_name": "r"}, grpc.StatusCode.UNIMPLEMENTED),
        ("RepositoryModelLoad", {"repository_name": "r", "model_name": "ffn"}, grpc.StatusCode.UNIMPLEMENTED),
        ("RepositoryModelUnload", {"repository_name": "r", "model_name": "ffn"}, grpc.StatusCode.UNIMPLEMENTED),
        ("RepositoryModelLoad", {"model_name": "../etc"}, INVALID),
        ("RepositoryModelLoad", {"model_name": ""}, INVALID),
        ("RepositoryModelLoad", {"model_name": "ffn", "parameters": {"nonsense": _text("")}}, INVALID),
        (
            "RepositoryModelLoad",
            {"model_name": "ffn", "parameters": {"file:1/w": pb.ModelRepositoryParameter(bytes_param=b"w")}},
            INVALID,
        ),
        (
            "RepositoryModelLoad",
            {"model_name": "ffn", "parameters": {"config": pb.ModelRepositoryParameter(int64_param=1)}},
            INVALID,
        ),
        ("RepositoryModelLoad", {"model_name": "ffn", "parameters": {"config": _text("x" * 33_000)}}, INVALID),
        ("RepositoryModelUnload", {"model_name": "ffn", "parameters": {"config": _text("")}}, INVALID),
        ("RepositoryModelUnload", {"model_name": "ffn", "parameters": {"unload_dependents": _text("")}}, INVALID),
    ],
)  # fmt: skip
async def test_what_is_refused(
    controlled: ControlledBed, method: str, fields: dict[str, Any], status: grpc.StatusCode
) -> None:
    code, text = await refused(controlled.call(method, **fields))
    assert code is status
    assert text
    assert not controlled.control.asked


def _entry(bed: TestBed, **changes: Any) -> Entry:
    return Entry(config=CONFIG.models[0], index=0, replicas=("worker-0.sock",), **changes)


@pytest.mark.asyncio
async def test_the_index_tells_the_state_and_its_reason(controlled: ControlledBed) -> None:
    catalogue = controlled.servicer.catalogue

    async def state(**changes: Any) -> tuple[str, str]:
        catalogue.roster = Roster(entries=(_entry(controlled, **changes),))
        index = await controlled.call("RepositoryIndex")
        (model,) = (model for model in index.models if model.name == "ffn")
        return model.state, model.reason

    assert await state() == ("LOADING", "no worker has loaded the model yet")
    controlled.worker()
    assert await state() == ("READY", "no answer from worker-0.sock")
    catalogue.serving = lambda key: {"worker-0.sock"}
    assert await state() == ("READY", "")
    assert await state(reason="the last load failed: x") == ("READY", "the last load failed: x")
    unloaded = await state(is_loaded=False, state="UNAVAILABLE", reason="unloaded")
    assert unloaded == ("UNAVAILABLE", "unloaded")
    ready = await controlled.call("RepositoryIndex", ready=True)
    assert "ffn" not in [model.name for model in ready.models]


@pytest.mark.asyncio
async def test_log_settings(controlled: ControlledBed) -> None:
    Value = pb.LogSettingsRequest.SettingValue
    answer = await controlled.call("LogSettings")
    assert answer.settings["log_info"].bool_param
    assert answer.settings["log_format"].string_param == "default"
    assert answer.settings["log_verbose_level"].uint32_param == 0
    assert not controlled.control.asked
    await controlled.call("LogSettings", settings={"log_info": Value(bool_param=False)})
    assert controlled.control.asked == [("log", {"log_info": False})]
    for settings, status in (
        ({"log_file": Value(string_param="/x")}, grpc.StatusCode.UNIMPLEMENTED),
        ({"log_colour": Value(string_param="red")}, INVALID),
        ({"log_info": Value()}, INVALID),
    ):
        code, _ = await refused(controlled.call("LogSettings", settings=settings))
        assert code is status


@pytest.mark.asyncio
async def test_trace_settings(controlled: ControlledBed) -> None:
    Value = pb.TraceSettingRequest.SettingValue
    answer = await controlled.call("TraceSetting")
    found = {key: list(value.value) for key, value in answer.settings.items()}
    assert found == {
        "trace_level": ["OFF"],
        "trace_rate": ["1000"],
        "trace_count": ["-1"],
        "log_frequency": ["0"],
        "trace_file": ["traces.jsonl"],
    }
    on = {"trace_level": Value(value=["TIMESTAMPS"]), "trace_rate": Value()}
    await controlled.call("TraceSetting", model_name="ffn", settings=on)
    asked = ("trace", "ffn", {"trace_level": ["TIMESTAMPS"], "trace_rate": []})
    assert controlled.control.asked == [asked]
    for fields, status in (
        ({"model_name": "none"}, grpc.StatusCode.NOT_FOUND),
        ({"settings": {"trace_file": Value(value=["x"])}}, grpc.StatusCode.UNIMPLEMENTED),
        ({"settings": {"trace_level": Value(value=["TENSORS"])}}, grpc.StatusCode.UNIMPLEMENTED),
        ({"settings": {"trace_colour": Value(value=["red"])}}, INVALID),
    ):
        code, _ = await refused(controlled.call("TraceSetting", **fields))
        assert code is status


@pytest.mark.asyncio
async def test_no_trace_without_a_file(bed: TestBed) -> None:
    on = {"trace_level": pb.TraceSettingRequest.SettingValue(value=["TIMESTAMPS"])}
    code, text = await refused(bed.call("TraceSetting", settings=on))
    assert code is grpc.StatusCode.UNIMPLEMENTED
    assert "--trace-file" in text
    off = await bed.call("TraceSetting")
    assert list(off.settings["trace_level"].value) == ["OFF"]
