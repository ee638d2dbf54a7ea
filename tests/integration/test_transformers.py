"""A real Llama whose MLPs all run on the service must write the same text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest
import torch
from tests.integration.harness import CHECKPOINT, Service, Start
from transformers import LlamaForCausalLM

from gatefuse.client.blocking import Client
from gatefuse.client.memory import SharedMemory
from gatefuse.client.transport.stream import Stream
from gatefuse.commands.loadtest.tensors import TensorFile
from gatefuse.remote import RemoteMLP, replace_mlps

# Logits reach 20, where bf16's unit in the last place is 0.125: measured one unit for both backends, two are allowed.
LARGEST_LOGIT_DIFFERENCE = 0.25


@pytest.fixture(scope="module")
def service(start: Start) -> Service:
    model = {"name": "llama-ffn", "checkpoint": str(CHECKPOINT), "backend": "fused"}
    eager = {"name": "llama-ffn-eager", "like": "llama-ffn", "backend": "eager"}
    return start({"device": "cpu", "allow_client_shm": True, "models": [model, eager]})


WAYS: dict[str, tuple[SharedMemory, str]] = {
    "unary": ("off", "ModelInfer"),
    "stream": ("off", "ModelStreamInfer"),
    "shared-memory": ("on", "ModelInfer"),
}


@contextmanager
def _caller(url: str, way: str) -> Iterator[Client | Stream]:
    """A client, or its stream, that sends rows in that way."""
    with ExitStack() as stack:
        client = stack.enter_context(Client(url, shared_memory=WAYS[way][0]))
        yield stack.enter_context(client.stream()) if way == "stream" else client


def _remote(caller: Client | Stream, name: str) -> LlamaForCausalLM:
    """The checkpoint's model with its four MLPs replaced: no weight of theirs is left in this process."""
    model = LlamaForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.bfloat16)
    assert replace_mlps(model, caller, name) == (0, 1, 2, 3)
    assert sum(isinstance(module, RemoteMLP) for module in model.modules()) == 4
    assert not [name for name, _ in model.named_parameters() if ".mlp." in name]
    return model


@pytest.fixture(params=["llama-ffn", "llama-ffn-eager"])
def remote_llama(service: Service, request: pytest.FixtureRequest) -> Iterator[LlamaForCausalLM]:
    with _caller(service.url, "unary") as caller:
        yield _remote(caller, request.param)


def _prompt(tiny_llama: TensorFile) -> torch.Tensor:
    return torch.from_numpy(tiny_llama["prompt_ids"].copy()).reshape(1, -1)


@pytest.mark.parametrize("name", ["llama-ffn", "llama-ffn-eager"])
@pytest.mark.parametrize("way", list(WAYS))
def test_greedy_text_is_the_same(
    service: Service, tiny_llama: TensorFile, way: str, name: str
) -> None:
    prompt = _prompt(tiny_llama)
    expected = tiny_llama["greedy_ids"].tolist()
    assert len(expected) == 64
    counted = {"method": WAYS[way][1], "code": "OK"}
    before = service.scrape_idle().value("gatefuse_requests_total", **counted)
    with _caller(service.url, way) as caller, torch.inference_mode():
        tokens = _remote(caller, name).generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=len(expected),
            do_sample=False,
        )
    assert tokens[0, prompt.shape[1] :].tolist() == expected
    # The prompt and then each new token but the last pass through four layers.
    answered = service.scrape_idle().value("gatefuse_requests_total", **counted)
    assert answered - before == 256


def test_logits_of_the_prompt(remote_llama: LlamaForCausalLM, tiny_llama: TensorFile) -> None:
    with torch.inference_mode():
        logits = remote_llama(_prompt(tiny_llama)).logits[0].float().numpy()
    difference = np.abs(logits - tiny_llama["logits"]).max()
    assert difference <= LARGEST_LOGIT_DIFFERENCE


def test_client_is_shared(service: Service) -> None:
    """One connection for all layers, as the example in the README shows it."""
    model = LlamaForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.bfloat16)
    with Client(service.url) as client:
        replace_mlps(model, client, "llama-ffn")
        remotes = [module for module in model.modules() if isinstance(module, RemoteMLP)]
        assert {id(remote.client) for remote in remotes} == {id(client)}
        with torch.inference_mode():
            assert model(torch.tensor([[1, 2, 3]])).logits.isfinite().all()
