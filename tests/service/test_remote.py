"""The torch module that calls a server, in a real transformers model too."""

from __future__ import annotations

import copy
import io
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from gatefuse.client.blocking import Client
from gatefuse.client.messages import InferenceError
from gatefuse.client.transport.stream import Stream
from gatefuse.commands.loadtest.tensors import TensorFile
from gatefuse.remote import RemoteMLP, replace_mlps

CHECKPOINT = Path(__file__).resolve().parents[2] / "tiny-llama"
HIDDEN = 256


@pytest.fixture
def client(fake_url: str) -> Iterator[Client]:
    with Client(fake_url, timeout_s=10) as client:
        yield client


class GatedMlp(nn.Module):
    """An MLP of the usual child names; merged is Phi-3's way."""

    def __init__(self, *, merged: bool) -> None:
        super().__init__()
        for name in ("gate_up_proj",) if merged else ("gate_proj", "up_proj"):
            self.add_module(name, nn.Linear(4, 4))
        self.down_proj = nn.Linear(4, 4)


def _decoder(*, merged: bool) -> nn.Module:
    layers = nn.ModuleList(nn.ModuleDict({"mlp": GatedMlp(merged=merged)}) for _ in range(3))
    return nn.ModuleDict({"model": nn.ModuleDict({"layers": layers})})


def _reloaded(module: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    loaded: nn.Module = torch.load(file, weights_only=False)  # noqa: TID251 (its own file)
    return loaded


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(8,), (1, 8), (2, 3, 8), (0, 8)], ids=str)
def test_same_shape_dtype_and_bits(
    client: Client, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    output = RemoteMLP(client, "identity")(x)
    assert output.dtype is dtype
    assert torch.equal(output, x)


def test_bf16_bits_travel_as_they_are(client: Client) -> None:
    x = torch.arange(-32768, 32768, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    x = x[~x.isnan()].reshape(2, -1)
    output = RemoteMLP(client, "identity")(x)
    assert torch.equal(output.view(torch.int16), x.view(torch.int16))


def test_views_are_sent_in_their_own_order(client: Client) -> None:
    x = torch.arange(12.0).reshape(3, 4)
    assert torch.equal(RemoteMLP(client, "identity")(x.T), x.T)


def test_answer_may_be_changed_in_place(client: Client) -> None:
    x = torch.ones(2, 4)
    RemoteMLP(client, "identity")(x).add_(1)
    assert torch.equal(x, torch.ones(2, 4))


def test_gradient_is_refused_and_inference_is_not(client: Client) -> None:
    module = RemoteMLP(client, "identity")
    x = torch.ones(2, 4, requires_grad=True)
    with pytest.raises(RuntimeError, match="no gradient: call the model under"):
        module(x)
    with torch.inference_mode():
        assert torch.equal(module(x), torch.ones(2, 4))


def test_other_dtypes_are_refused(client: Client) -> None:
    with pytest.raises(TypeError, match=r"not torch\.float64"):
        RemoteMLP(client, "identity")(torch.ones(2, 4, dtype=torch.float64))


@pytest.mark.parametrize("merged", [False, True], ids=["separate", "merged"])
def test_every_layer_is_replaced_once(client: Client, merged: bool) -> None:
    model = _decoder(merged=merged)
    assert replace_mlps(model, client, "fused") == (0, 1, 2)
    remotes = [module for module in model.modules() if isinstance(module, RemoteMLP)]
    assert [remote.layer for remote in remotes] == [0, 1, 2]
    assert {id(remote.client) for remote in remotes} == {id(client)}
    assert not list(model.parameters())
    assert "model='fused', layer=2" in repr(model)


def test_models_without_or_with_ambiguous_layers_are_refused(client: Client) -> None:
    with pytest.raises(ValueError, match="no MLP found"):
        replace_mlps(nn.Linear(2, 2), client, "fused")
    experts = nn.ModuleDict({"layers": nn.ModuleList([nn.ModuleList([GatedMlp(merged=False)])])})
    towers = nn.ModuleDict({name: _decoder(merged=False) for name in ("text", "vision")})
    for model in (experts, towers, GatedMlp(merged=False)):
        with pytest.raises(ValueError, match="cannot tell which layer"):
            replace_mlps(model, client, "fused")
        assert not any(isinstance(module, RemoteMLP) for module in model.modules())


def test_errors_name_the_module_and_the_layer(client: Client) -> None:
    model = _decoder(merged=False)
    replace_mlps(model, client, "absent")
    remote = model.get_submodule("model.layers.1.mlp")
    with pytest.raises(
        InferenceError, match=r"NOT_FOUND: model\.layers\.1\.mlp \(absent, layer 1\): no model"
    ) as caught:
        remote(torch.ones(1, 4))
    assert caught.value.code is grpc.StatusCode.NOT_FOUND
    with pytest.raises(TypeError, match=r"model\.layers\.1\.mlp .* not torch\.int32"):
        remote(torch.ones(1, 4, dtype=torch.int32))


def test_a_module_closes_the_client_that_it_made(client: Client, fake_url: str) -> None:
    x = torch.ones(1, 4)
    own = RemoteMLP([fake_url, "127.0.0.1:1"], "identity")
    assert torch.equal(own(x), x)
    own.close()
    with pytest.raises(InferenceError, match=r"CANCELLED: a remote MLP .*: the client is closed"):
        own(x)
    given = RemoteMLP(client, "identity")
    given.close()
    assert torch.equal(given(x), x)


def test_copies(client: Client, fake_url: str) -> None:
    x = torch.ones(1, 4)
    module = RemoteMLP(fake_url, "identity", path="a")
    copied = copy.deepcopy(nn.ModuleList([module]))[0]
    assert isinstance(copied, RemoteMLP)
    assert torch.equal(copied(x), x)
    assert copied.client is module.client, "a module without weights needs no connection of its own"
    again = _reloaded(copied)
    assert isinstance(again, RemoteMLP)
    assert torch.equal(again(x), x)
    assert repr(again) == repr(module)
    again.close()
    assert torch.equal(module(x), x)
    copied.close()
    with pytest.raises(InferenceError, match="CANCELLED"):
        module(x)
    given = RemoteMLP(client, "identity")
    assert torch.equal(copy.deepcopy(given)(x), x)
    with pytest.raises(TypeError, match="was given a client"):
        torch.save(given, io.BytesIO())


def test_a_model_with_an_address_is_copied_saved_and_closed(fake_url: str) -> None:
    x = torch.ones(2, HIDDEN)
    model = _decoder(merged=False)
    replace_mlps(model, fake_url, "fused")
    copied, loaded = copy.deepcopy(model), _reloaded(model)
    paths = [f"model.layers.{layer}.mlp" for layer in range(3)]
    truth = model.get_submodule(paths[1])(x)
    for other in (copied, loaded):
        assert torch.equal(other.get_submodule(paths[1])(x), truth)
    assert len({id(loaded.get_submodule(path).client) for path in paths}) == 1
    for other in (model, loaded):
        first, last = other.get_submodule(paths[0]), other.get_submodule(paths[2])
        assert isinstance(first, RemoteMLP)
        first.close()
        with pytest.raises(InferenceError, match="CANCELLED"):
            last(x)


def test_no_rows_ask_nobody() -> None:
    x = torch.empty(2, 0, HIDDEN, dtype=torch.bfloat16)
    module = RemoteMLP("127.0.0.1:1", "any")
    output = module(x)
    assert (output.shape, output.dtype) == (x.shape, x.dtype)
    module.close()


def test_layers_share_a_stream(client: Client) -> None:
    x = torch.randn(2, HIDDEN, generator=torch.Generator().manual_seed(0))
    with client.stream() as stream:
        model = _decoder(merged=False)
        replace_mlps(model, stream, "fused")
        for layer in range(3):
            streamed = model.get_submodule(f"model.layers.{layer}.mlp")(x)
            assert torch.equal(streamed, RemoteMLP(client, "fused", layer)(x))


def test_stream_keeps_the_clients_deadline(fake_url: str) -> None:
    with Client(fake_url, timeout_s=0.3) as client:
        stream = client.stream()
        with pytest.raises(
            InferenceError, match=r"a remote MLP \(slow, layer 0\): no answer"
        ) as caught:
            RemoteMLP(stream, "slow", 0)(torch.ones(1, HIDDEN))
        stream.close(wait=False)
    assert caught.value.code is grpc.StatusCode.DEADLINE_EXCEEDED


@pytest.mark.parametrize("way", ["unary", "stream"])
def test_greedy_text_of_a_llama_is_the_same(client: Client, way: str) -> None:
    with ExitStack() as stack:
        caller = client if way == "unary" else stack.enter_context(client.stream())
        _check_greedy_text(caller)


def _check_greedy_text(caller: Client | Stream) -> None:
    model = AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.bfloat16)
    assert replace_mlps(model, caller, "fused") == (0, 1, 2, 3)
    truth = TensorFile(CHECKPOINT / "hidden_states.safetensors")
    prompt = torch.from_numpy(truth["prompt_ids"].copy()).reshape(1, -1)
    greedy = truth["greedy_ids"].reshape(-1).tolist()
    with torch.inference_mode():
        tokens = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=len(greedy),
            do_sample=False,
        )
    assert tokens[0, prompt.shape[1] :].tolist() == greedy
