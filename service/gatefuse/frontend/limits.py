"""What the configuration of a model says of its queue, as the batcher takes it."""

from gatefuse.batching.batcher import Limits
from gatefuse.batching.queue_policy import Priorities, QueuePolicy
from gatefuse.config import ModelConfig, QueuePolicyConfig


def limits_of(model: ModelConfig) -> Limits:
    """The limits of a model."""
    batching = model.batching
    return Limits(
        batching.max_batch_rows,
        batching.max_queue_rows,
        batching.max_queue_delay_us / 1e6,
        Priorities(batching.priority_levels, batching.default_priority_level or 0),
        _policy(batching.queue_policy),
        {level: _policy(each) for level, each in batching.priority_queue_policy.items()},
    )


def _policy(config: QueuePolicyConfig) -> QueuePolicy:
    return QueuePolicy(
        config.timeout_action,
        config.default_timeout_us / 1e6,
        config.allow_timeout_override,
        config.max_queue_size,
    )
