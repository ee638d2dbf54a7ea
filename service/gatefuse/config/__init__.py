"""The YAML configuration: typed, checked once, every error names its key.

The file is read by the process that starts the service; what the other processes need travels to them as these
value types. Nothing here imports torch, ray or grpc.
"""

from gatefuse.config.constants import Vector, VectorFile
from gatefuse.config.errors import ConfigError
from gatefuse.config.model import Batching, ModelConfig, QueuePolicyConfig, RandomWeights
from gatefuse.config.reading import load_config, parse_config
from gatefuse.config.service import ServiceConfig
from gatefuse.config.strict import Strict
from gatefuse.config.tracing import TracingConfig
from gatefuse.config.vector_files import vector_columns

__all__ = [
    "Batching",
    "ConfigError",
    "ModelConfig",
    "QueuePolicyConfig",
    "RandomWeights",
    "ServiceConfig",
    "Strict",
    "TracingConfig",
    "Vector",
    "VectorFile",
    "load_config",
    "parse_config",
    "vector_columns",
]
