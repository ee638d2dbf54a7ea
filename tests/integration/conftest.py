"""What the integration tests share: the exact answers of the checkpoint in this repository, and a way to be served."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest
from tests.integration.harness import CHECKPOINT, Service, Start, serving

from gatefuse.commands.loadtest.tensors import TensorFile


@pytest.fixture(scope="session")
def tiny_llama() -> TensorFile:
    """Inputs and exact answers of every layer, the prompt and its greedy continuation."""
    return TensorFile(CHECKPOINT / "hidden_states.safetensors")


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Starts a service with a configuration; when the module ends it must stop with 0 and leave nothing."""
    with ExitStack() as stack:

        def start_one(config: Mapping[str, Any]) -> Service:
            folder = tmp_path_factory.mktemp("service")
            return stack.enter_context(serving(folder, config))

        yield start_one
