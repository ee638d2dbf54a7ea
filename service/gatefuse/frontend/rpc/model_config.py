"""How a model is batched and placed, in the words of the protocol."""

from collections import Counter
from collections.abc import Mapping, Sequence

from gatefuse.batching.batcher import Limits
from gatefuse.batching.queue_policy import QueuePolicy, TimeoutAction
from gatefuse.frontend.requests import codec
from gatefuse.frontend.rpc.call import Context, Handler, unary
from gatefuse.frontend.rpc.catalogue import Catalogue
from gatefuse.link.served_model import ServedModel
from gatefuse_protos import open_inference_pb2 as pb

_DATA_TYPES = {"fp32": pb.TYPE_FP32, "fp16": pb.TYPE_FP16, "bf16": pb.TYPE_BF16}


class ModelConfiguration:
    """ModelConfig."""

    extensions = ("model_configuration",)

    def __init__(self, catalogue: Catalogue) -> None:
        """Describes the models of `catalogue`."""
        self._catalogue = catalogue

    def methods(self) -> Mapping[str, Handler]:
        """The handler by name."""
        return {"ModelConfig": unary("ModelConfig", pb.ModelConfigRequest.FromString, self._config)}

    async def _config(
        self, request: pb.ModelConfigRequest, context: Context
    ) -> pb.ModelConfigResponse:
        model = self._catalogue.loaded(request.name, request.version)
        dispatcher = self._catalogue.dispatcher
        limits, devices = dispatcher.limits(model.name), dispatcher.devices(model.name)
        return pb.ModelConfigResponse(config=model_config(model, limits, devices))


def model_config(model: ServedModel, limits: Limits, devices: Sequence[str]) -> pb.ModelConfig:
    """A model's configuration as it is now; `devices` are those of the workers that serve it, "cpu" or a GPU each."""
    config = pb.ModelConfig(
        name=model.name,
        platform="gatefuse",
        backend=model.backend,
        version_policy=pb.ModelVersionPolicy(latest=pb.ModelVersionPolicy.Latest(num_versions=1)),
        max_batch_size=limits.max_batch_rows,
        dynamic_batching=_dynamic_batching(limits),
        model_transaction_policy=pb.ModelTransactionPolicy(decoupled=False),
    )
    data_type, width = _DATA_TYPES[model.dtype], model.columns or -1
    for name in model.inputs:
        config.input.add(name=name, data_type=data_type, dims=[width])
    for name in model.outputs:
        config.output.add(name=name, data_type=data_type, dims=[width])
    kinds = Counter(_device_kind(device) for device in devices)
    for kind, count in kinds.items():
        config.instance_group.add(
            name=f"{model.name}_{len(config.instance_group)}", count=count, kind=kind
        )
    for key, value in codec.facts(model).items():
        config.parameters[key].string_value = value
    return config


def _dynamic_batching(limits: Limits) -> pb.ModelDynamicBatching:
    levels = limits.level_policies
    return pb.ModelDynamicBatching(
        max_queue_delay_microseconds=round(limits.max_queue_delay_s * 1e6),
        priority_levels=limits.priorities.levels,
        default_priority_level=limits.priorities.default_level,
        default_queue_policy=_queue_policy(limits.policy),
        priority_queue_policy={level: _queue_policy(each) for level, each in levels.items()},
    )


def _queue_policy(policy: QueuePolicy) -> pb.ModelQueuePolicy:
    delays = policy.timeout_action is TimeoutAction.DELAY
    return pb.ModelQueuePolicy(
        timeout_action=pb.ModelQueuePolicy.DELAY if delays else pb.ModelQueuePolicy.REJECT,
        default_timeout_microseconds=round(policy.default_timeout_s * 1e6),
        allow_timeout_override=policy.allow_timeout_override,
        max_queue_size=policy.max_queue_size,
    )


def _device_kind(device: str) -> pb.ModelInstanceGroup.Kind:
    return pb.ModelInstanceGroup.KIND_CPU if device == "cpu" else pb.ModelInstanceGroup.KIND_GPU
