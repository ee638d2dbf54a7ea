"""ModelConfig: true figures, in the protocol's words."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from tests.service.bed import TestBed, refused
from tests.service.fakes import ANY_WIDTH, DEEP, MLP, PAIR

from gatefuse.batching.batcher import Limits
from gatefuse.batching.queue_policy import Priorities, QueuePolicy, TimeoutAction
from gatefuse.frontend.rpc.model_config import model_config
from gatefuse.link.served_model import ServedModel
from gatefuse_protos import open_inference_pb2 as pb

LIMITS = Limits(max_batch_rows=8, max_queue_rows=100)
Group = pb.ModelInstanceGroup


@pytest.mark.parametrize(
    ("model", "data_type", "width"),
    [(MLP, pb.TYPE_BF16, 3), (DEEP, pb.TYPE_FP16, 3), (ANY_WIDTH, pb.TYPE_FP32, -1)],
    ids=["bf16", "fp16", "any_width"],
)
def test_tensors_have_no_dimension_for_the_batch(
    model: ServedModel, data_type: int, width: int
) -> None:
    config = model_config(model, LIMITS, ["cpu"])
    assert config.max_batch_size == 8
    (given,), (answered,) = config.input, config.output
    assert (given.name, answered.name) == (model.inputs[0], model.outputs[0])
    assert (given.data_type, answered.data_type) == (data_type, data_type)
    assert (list(given.dims), list(answered.dims)) == ([width], [width])


def test_all_tensors_are_named() -> None:
    config = model_config(PAIR, LIMITS, [])
    assert [tensor.name for tensor in config.input] == ["g", "u"]
    assert [tensor.name for tensor in config.output] == ["y", "t"]
    assert not config.instance_group


def test_the_waiting_is_described() -> None:
    policy = QueuePolicy(TimeoutAction.DELAY, 0.25, False, 17)
    limits = Limits(8, 100, 0.0015, Priorities(5, 3), policy, {2: QueuePolicy(max_queue_size=4)})
    batching = model_config(MLP, limits, ["cpu"]).dynamic_batching
    assert batching == pb.ModelDynamicBatching(
        max_queue_delay_microseconds=1500,
        priority_levels=5,
        default_priority_level=3,
        default_queue_policy=pb.ModelQueuePolicy(
            timeout_action=pb.ModelQueuePolicy.DELAY,
            default_timeout_microseconds=250_000,
            allow_timeout_override=False,
            max_queue_size=17,
        ),
        priority_queue_policy={
            2: pb.ModelQueuePolicy(
                timeout_action=pb.ModelQueuePolicy.REJECT,
                allow_timeout_override=True,
                max_queue_size=4,
            )
        },
    )


def test_instances_are_the_workers() -> None:
    config = model_config(MLP, LIMITS, ["cuda:0", "cpu", "cuda:0"])
    found = {group.kind: (group.name, group.count) for group in config.instance_group}
    assert found == {Group.KIND_GPU: ("ffn_0", 2), Group.KIND_CPU: ("ffn_1", 1)}


@pytest.mark.asyncio
async def test_a_served_model(bed: TestBed) -> None:
    code, text = await refused(bed.call("ModelConfig", name="ffn"))
    assert (code, text) == (grpc.StatusCode.UNAVAILABLE, "model 'ffn' is still loading")
    bed.worker(max_queue_delay_s=0.002)
    bed.worker()
    config = (await bed.call("ModelConfig", name="ffn", version="1")).config
    assert (config.name, config.platform, config.backend) == ("ffn", "gatefuse", "fused")
    assert [(group.kind, group.count) for group in config.instance_group] == [(Group.KIND_CPU, 2)]
    assert config.WhichOneof("scheduling_choice") == "dynamic_batching"
    assert config.version_policy.latest.num_versions == 1
    assert not config.model_transaction_policy.decoupled
    assert config.parameters["layers"].string_value == "0"
    cases: tuple[tuple[dict[str, Any], grpc.StatusCode], ...] = (
        ({"name": "other"}, grpc.StatusCode.NOT_FOUND),
        ({"name": "ffn", "version": "2"}, grpc.StatusCode.NOT_FOUND),
        ({"name": "ffn", "version": "x"}, grpc.StatusCode.INVALID_ARGUMENT),
    )
    for fields, status in cases:
        code, _ = await refused(bed.call("ModelConfig", **fields))
        assert code is status
