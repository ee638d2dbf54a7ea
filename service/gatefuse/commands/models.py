"""`gatefuse models`: what a running server serves, and how."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from gatefuse.client.messages import InferenceError
from gatefuse.client.metadata import ModelMetadata, model_metadata
from gatefuse.client.transport import rpcs
from gatefuse.client.transport.blocking import Transport
from gatefuse.client.transport.retry import NO_RETRY
from gatefuse.commands.conventions import EXIT_UNAVAILABLE, EXIT_USAGE, EXIT_WRONG
from gatefuse.commands.text_table import text_table
from gatefuse_protos import open_inference_pb2 as pb

COLUMNS = (
    "model",
    "state",
    "kind",
    "backend",
    "dtype",
    "width",
    "layers",
    "requests",
    "rows",
    "what runs",
)
TIMEOUT_S = 30.0
# A server that has no such method, or a model that is not loaded.
_ABSENT = (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNAVAILABLE)


@dataclass(frozen=True, slots=True)
class _Model:
    """What the server tells of one model; None for what it does not tell."""

    name: str
    version: str
    state: str
    reason: str
    metadata: ModelMetadata | None
    config: Mapping[str, Any] | None
    statistics: Mapping[str, Any] | None


def run(url: str, as_json: bool) -> int:
    """Prints the models of the server at `url`; returns the exit status."""
    try:
        transport = Transport(url, None, TIMEOUT_S, NO_RETRY)
    except ValueError as error:
        print(f"gatefuse: {error}", file=sys.stderr)
        return EXIT_USAGE
    try:
        index = transport.call(rpcs.REPOSITORY_INDEX, pb.RepositoryIndexRequest())
        models = [_ask(transport, entry) for entry in index.models]
    except InferenceError as error:
        print(f"gatefuse: {url}: {error}", file=sys.stderr)
        return EXIT_UNAVAILABLE if error.code is grpc.StatusCode.UNAVAILABLE else EXIT_WRONG
    finally:
        transport.close()
    if as_json:
        print(json.dumps([_as_json(model) for model in models], indent=2))
    else:
        _print(models)
    return 0


def _ask(transport: Transport, entry: pb.RepositoryIndexResponse.ModelIndex) -> _Model:
    name = entry.name
    metadata = _told(transport, rpcs.MODEL_METADATA, pb.ModelMetadataRequest(name=name))
    config = _told(transport, rpcs.MODEL_CONFIG, pb.ModelConfigRequest(name=name))
    statistics = _told(transport, rpcs.MODEL_STATISTICS, pb.ModelStatisticsRequest(name=name))
    return _Model(
        name,
        entry.version,
        entry.state,
        entry.reason,
        model_metadata(metadata) if metadata is not None else None,
        _dict(config.config) if config is not None else None,
        _dict(statistics.model_stats[0]) if statistics and statistics.model_stats else None,
    )


def _told(transport: Transport, rpc: rpcs.Rpc[Any], request: Message) -> Any:
    try:
        return transport.call(rpc, request)
    except InferenceError as error:
        if error.code in _ABSENT:
            return None
        raise


def _dict(message: Message) -> dict[str, Any]:
    return MessageToDict(message, preserving_proto_field_name=True)


def _as_json(model: _Model) -> dict[str, Any]:
    metadata = asdict(model.metadata) if model.metadata is not None else {}
    return {
        **metadata,
        "name": model.name,
        "version": model.version,
        "ready": model.state == "READY",
        "state": model.state,
        "reason": model.reason,
        "config": model.config,
        "statistics": model.statistics,
    }


def _print(models: list[_Model]) -> None:
    if not models:
        print("no models")
        return
    print(text_table([COLUMNS, *map(_row, models)], left=len(COLUMNS)))
    for model in models:
        if model.reason:
            print(f"{model.name}: {model.reason}")


def _row(model: _Model) -> tuple[str, ...]:
    counts = model.statistics or {}
    requests = counts.get("inference_stats", {}).get("success", {}).get("count", 0)
    rows = counts.get("inference_count", 0)
    told = ("-", "-") if model.statistics is None else (str(requests), str(rows))
    if model.metadata is None:
        return (model.name, model.state, "-", "-", "-", "-", "-", *told, "-")
    facts = model.metadata.properties
    width = model.metadata.inputs[0].shape[1]
    return (
        model.name,
        model.state,
        facts.get("kind", "-"),
        facts.get("backend", "-"),
        facts.get("dtype", "-"),
        f"1..{facts.get('max_columns', '-')}" if width < 0 else str(width),
        facts.get("layers", "-"),
        *told,
        facts.get("description", "-"),
    )
