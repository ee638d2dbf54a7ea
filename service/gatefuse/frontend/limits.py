"""What the configuration of a model says of its queue, as the batcher takes it."""

from gatefuse.batching.batcher import Limits
from gatefuse.batching.queue_policy import Priorities, QueuePolicy
from gatefuse.config import ModelConfig


def limits_of(model: ModelConfig) -> Limits:
    """The limits of a model."""
    batching = model.batching
    policy = batching.queue_policy
    return Limits(
        batching.max_batch_rows,
        batching.max_queue_rows,
        batching.max_queue_delay_us / 1e6,
        Priorities(batching.priority_levels, batching.default_priority_level or 0),
        QueuePolicy(
            policy.timeout_action,
            policy.default_timeout_us / 1e6,
            policy.allow_timeout_override,
            policy.max_queue_size,
        ),
    )
