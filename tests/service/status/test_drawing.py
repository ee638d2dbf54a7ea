"""The picture, exactly, from two moments whose figures are known."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.service.status.pictures import AFTER, FACTS, STARTED_UNIX_S, change, picture, samples

from gatefuse.status.drawing import IDLE, draw, model_state, point, service_state
from gatefuse.status.facts import NOT_PLACED, ModelFacts, WorkerFacts
from gatefuse.status.picture import (
    Device,
    Latency,
    Point,
    Process,
    Reason,
    Totals,
    Traffic,
    Work,
    Worker,
)

# Of 40 requests, 20 took at most 1 ms and 20 more at most 2 ms: evenly between the two.
P99_S = 0.001 + (0.002 - 0.001) * (0.99 * 40 - 20) / 20
LATENCY = Latency(p50_s=0.001, p99_s=P99_S)


def test_the_whole_service() -> None:
    drawn = picture()
    assert (drawn.state, drawn.version, drawn.grpc) == ("ready", "1.2.3", "127.0.0.1:8001")
    assert (drawn.started_unix_s, drawn.up_s, drawn.window_s) == (STARTED_UNIX_S, 100.0, 4.0)
    # Only methods that ask for rows count; a stream's requests do.
    assert drawn.totals == Totals({"ok": 140, "shed": 10}, 560, 3, 5, 96)
    assert drawn.now == Traffic(
        ok_per_s=10.0,
        client_per_s=0.0,
        server_per_s=0.0,
        shed_per_s=2.5,
        rows_per_s=40.0,
        rows_per_batch=8.0,
        padding_ratio=0.2,
        busy_s_per_s=0.5,
        latency=LATENCY,
    )


def test_a_model_that_works() -> None:
    model = picture().models[0]
    assert (model.name, model.backend, model.kind, model.dtype) == (
        "ffn",
        "fused",
        "swiglu",
        "bf16",
    )
    assert (model.columns, model.intermediate, model.group) == (8, 16, 0)
    assert (model.state, model.replicas, model.replicas_ready) == ("ready", 2, 2)
    assert (model.queue_rows, model.queue_capacity_rows) == (5, 64)
    assert (model.requests, model.rows) == (140, 560)
    assert model.now == Work(
        requests_per_s=10.0,
        rows_per_s=40.0,
        latency=LATENCY,
        queue_wait=Latency(0.0002 * 20 / 40, 0.0002 * (0.99 * 40) / 40),
        rows_per_batch=8.0,
        padding_ratio=0.2,
        launches_per_row=0.25,
        bytes_per_row=10.0,
        device_s_per_row=0.0125,
        bytes_per_device_s=800.0,
    )
    assert model.since_start.requests_per_s == 1.4
    assert model.since_start.rows_per_batch == pytest.approx(560 / 120)
    assert model.since_start.padding_ratio == pytest.approx(40 / 600)


def test_models_that_did_nothing_have_no_quotients() -> None:
    models = picture().models
    assert [(model.name, model.backend) for model in models] == [
        ("ffn", "fused"),
        ("ffn-eager", "eager"),
        ("gate", "fused"),
    ]
    assert models[1].now == IDLE
    assert models[1].since_start == IDLE
    assert models[2].queue_capacity_rows == 32


def test_without_a_second_moment_there_is_no_now() -> None:
    drawn = draw(FACTS, samples(AFTER), None, STARTED_UNIX_S, 100.0)
    assert drawn.window_s is None
    assert drawn.now is None
    assert {model.now for model in drawn.models} == {None}
    assert drawn.models[0].since_start.rows_per_s == 5.6
    assert {reason.per_s for reason in drawn.reasons} == {None}
    assert drawn.devices[0].busy_ratio is None


def test_devices_and_processes() -> None:
    drawn = picture()
    assert drawn.devices == (Device("cuda:0", 0.5, 0.5, 4e9, 8e9, 350.5, 61.0, ("power",), 2),)
    assert drawn.processes == (
        Process("driver", 1e8, 42, 0.5, None, 41),
        Process("frontend-0", None, None, None, 0.004, None),
    )


def test_where_no_gpu_tells_of_itself_nothing_is_made_up() -> None:
    text = 'gatefuse_device_busy_seconds_total{model="m",backend="eager",device="cpu"} 1\n'
    (device,) = draw(FACTS, samples(text), None, STARTED_UNIX_S, 1.0).devices
    assert device == Device("cpu", None, None, None, None, None, None, (), None)


def test_reasons_are_those_that_happened() -> None:
    assert picture().reasons == (
        Reason("shed", "queue_full", 10, 2.5),
        Reason("batch sealed", "idle", 120, 30.0),
    )


def test_workers() -> None:
    assert picture().workers == (
        Worker(0, "ready", "cuda", 0, 2),
        Worker(1, "ready", "cuda", 2, 2),
    )


def test_before_anything_is_placed() -> None:
    drawn = draw(NOT_PLACED, samples(""), None, STARTED_UNIX_S, 0.1)
    assert (drawn.state, drawn.models, drawn.workers, drawn.devices) == ("starting", (), (), ())


def test_a_reload_with_another_backend_is_a_row_of_its_own() -> None:
    text = AFTER + (
        'gatefuse_model_info{model="ffn",backend="eager",dtype="bf16",hidden="8",intermediate="16",'
        'weights="w"} 1\n'
    )
    facts = replace(FACTS, models=(replace(FACTS.models[0], backend="eager"),))
    # What described the load that is gone, if anything still does, is zero.
    gone = "\n".join(
        line for line in text.splitlines() if 'info{model="ffn",backend="fused"' not in line
    )
    zero = gone + (
        '\ngatefuse_model_info{model="ffn",backend="fused",dtype="fp16",hidden="8",intermediate="16",'
        'weights="w"} 0\n'
    )
    for told, dtype, columns in ((text, "bf16", 8), (zero, "fp16", 8), (gone, "bf16", 0)):
        new, old = draw(facts, samples(told), None, STARTED_UNIX_S, 100.0).models
        assert (new.backend, new.state, new.queue_rows, new.requests) == ("eager", "ready", 5, 0)
        assert (old.backend, old.state, old.queue_rows, old.requests) == (
            "fused",
            "replaced",
            0,
            140,
        )
        assert (old.dtype, old.columns) == (dtype, columns)


def test_an_earlier_load_that_did_nothing_has_no_row() -> None:
    text = UNUSED + LOADED.replace("} 1", "} 0")
    gate = replace(FACTS.models[2], backend="compiled")
    (model,) = draw(replace(FACTS, models=(gate,)), samples(text), None, 1, 1.0).models
    assert (model.backend, model.state) == ("compiled", "ready")


UNUSED = 'gatefuse_inference_duration_seconds_count{model="gate",backend="fused"} 0\n'
USED = UNUSED.replace("} 0", "} 5")
USED_EAGER = USED.replace("fused", "eager")
LOADED = 'gatefuse_model_info{model="gate",backend="fused",dtype="fp32"} 1\n'
LOADED_EAGER = LOADED.replace("fused", "eager")


@pytest.mark.parametrize(
    ("state", "text", "rows"),
    [
        ("READY", "", [("auto", "ready")]),
        ("READY", LOADED, [("fused", "ready")]),
        ("UNAVAILABLE", UNUSED, [("auto", "unavailable")]),
        ("UNAVAILABLE", USED, [("fused", "unavailable")]),
        ("UNAVAILABLE", USED_EAGER, [("auto", "unavailable"), ("eager", "replaced")]),
        ("READY", LOADED + USED_EAGER, [("fused", "ready"), ("eager", "replaced")]),
        # While the load that follows an eager one is being made known.
        ("READY", LOADED_EAGER + LOADED, [("fused", "ready"), ("eager", "replaced")]),
    ],
)
def test_a_model_of_backend_auto(state: str, text: str, rows: list[tuple[str, str]]) -> None:
    gate = replace(FACTS.models[2], state=state, reason="why")
    models = draw(replace(FACTS, models=(gate,)), samples(text), None, 1, 1.0).models
    assert [(model.backend, model.state) for model in models] == rows
    assert [model.reason for model in models] == ["why", ""][: len(rows)]


def test_a_model_of_backend_auto_is_starting_with_the_service() -> None:
    workers = tuple(replace(worker, state="warming") for worker in FACTS.workers)
    facts = replace(FACTS, models=FACTS.models[2:], workers=workers)
    (model,) = draw(facts, samples(""), None, 1, 1.0).models
    assert (model.backend, model.state) == ("auto", "starting")


@pytest.mark.parametrize(
    ("states", "grpc", "draining", "expected"),
    [
        (("ready", "ready"), "h:1", False, "ready"),
        (("ready", "dead"), "h:1", False, "degraded"),
        (("warming", "dead"), "h:1", False, "down"),
        (("ready", "ready"), "", False, "starting"),
        (("ready", "ready"), "h:1", True, "draining"),
    ],
)
def test_the_state_of_the_service(
    states: tuple[str, ...], grpc: str, draining: bool, expected: str
) -> None:
    workers = tuple(WorkerFacts(slot, state, "cpu") for slot, state in enumerate(states))
    assert service_state(replace(FACTS, grpc=grpc, draining=draining, workers=workers)) == expected


@pytest.mark.parametrize(
    ("repository", "states", "expected"),
    [
        ("READY", {0: "ready", 1: "ready"}, "ready"),
        ("READY", {0: "ready", 1: "dead"}, "degraded"),
        ("READY", {0: "warming", 1: "starting"}, "starting"),
        ("READY", {0: "warming", 1: "dead"}, "down"),
        ("READY", {0: "ready"}, "degraded"),
        ("UNAVAILABLE", {0: "ready", 1: "ready"}, "unavailable"),
        ("LOADING", {}, "loading"),
    ],
)
def test_the_state_of_a_model(repository: str, states: dict[int, str], expected: str) -> None:
    model = ModelFacts("m", "swiglu", "fused", "bf16", 0, (0, 1), state=repository)
    assert model_state(model, states) == expected


def test_a_point_of_the_history() -> None:
    assert point(change(), samples(AFTER)) == Point(
        age_s=0.0,
        ok_per_s=10.0,
        failed_per_s=2.5,
        rows_per_s=40.0,
        p50_s=0.001,
        p99_s=P99_S,
        queue_rows=5,
        busy_s_per_s=0.5,
    )
