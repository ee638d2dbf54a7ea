"""A torch module whose MLP runs on a server, and the swap that puts it into a transformers model.

replace_mlps(model, "localhost:8001", "llama-ffn")
model.generate(...)
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from gatefuse.client import Client
from gatefuse.messages import InferenceError, Result
from gatefuse.transport.stream import Stream

Server: TypeAlias = Client | Stream | str | Sequence[str]
"""A client, or one of its streams; or ``HOST:PORT``, or several, for a client to be made of."""

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class RemoteMLP(nn.Module):
    """Runs one layer of a served MLP. Holds no weights and has no gradient: it is for inference."""

    def __init__(
        self,
        client: Server,
        model: str,
        layer: int | None = None,
        *,
        path: str = "",
    ) -> None:
        """Connects at the first call.

        Args:
            client: A client, which several modules may share; one of its streams, which they may share too; or the
                server's ``HOST:PORT``, or several, for a client that ``close`` closes.
            model: The served model's name.
            layer: Which of its layers; None for the server's choice.
            path: Where the module is in its model, such as ``model.layers.3.mlp``: errors name it.
        """
        super().__init__()
        self._url = None if isinstance(client, Client | Stream) else client
        self.client = _client_of(client)
        self.model = model
        self.layer = layer
        self.path = path

    def close(self) -> None:
        """Closes the connection that the module made; a client or stream that it was given stays open."""
        if self._url is not None:
            self.client.close()

    def __deepcopy__(self, memo: dict[int, Any]) -> RemoteMLP:
        """A module without weights needs no connection of its own: copies share it, and leave it open."""
        return RemoteMLP(self.client, self.model, self.layer, path=self.path)

    def __reduce__(self) -> tuple[Any, ...]:
        """Connects anew where it is unpickled. Raises TypeError for a module that was given a client or a stream."""
        if self._url is None:
            raise TypeError(f"{self._name} was given a client, which stays here: give it HOST:PORT")
        return _unpickled, (self._url, self.model, self.layer, self.path)

    def extra_repr(self) -> str:
        """Returns what torch prints between the module's brackets."""
        return f"model={self.model!r}, layer={self.layer}"

    def forward(self, x: Tensor) -> Tensor:
        """Returns the MLP of ``x``: same shape, dtype and device.

        Args:
            x: [..., H] float32, float16 or bfloat16; elements travel as they are.

        Raises:
            gatefuse.InferenceError: The call was not answered; the text names the module and the layer.
            RuntimeError: A gradient is asked for.
            TypeError: Another dtype.
        """
        if x.requires_grad and torch.is_grad_enabled():
            raise RuntimeError(
                f"{self._name} has no gradient: call the model under torch.inference_mode()"
            )
        if x.dtype not in DTYPES:
            raise TypeError(f"{self._name} takes float32, float16 or bfloat16, not {x.dtype}")
        try:
            answer = self.client.infer(self.model, x, layer=self.layer)
            output: Tensor = self._awaited(answer).output
        except InferenceError as error:
            raise InferenceError(error.code, f"{self._name}: {error.details}") from error
        return output

    @property
    def _name(self) -> str:
        layer = "" if self.layer is None else f", layer {self.layer}"
        return f"{self.path or 'a remote MLP'} ({self.model}{layer})"

    @staticmethod
    def _awaited(answer: Result | Future[Result]) -> Result:
        return answer if isinstance(answer, Result) else answer.result()


def replace_mlps(model: nn.Module, client: Server, name: str) -> tuple[int, ...]:
    """Replaces the MLP of every decoder layer by a remote one, in place.

    An MLP is a module with the children ``gate_proj``, ``up_proj`` and ``down_proj``, or
    ``gate_up_proj`` and ``down_proj``; its layer is the number in its path, such as 3 in
    ``model.layers.3.mlp``.

    Args:
        model: A transformers model of the Llama kind. The weights of its MLPs are let go.
        client: What all layers then share: a client, one of its streams, or the server's ``HOST:PORT``, or several. A
            client that is made here is the attribute ``client`` of every module that it replaces.
        name: The served model that holds the same layers.

    Returns:
        The layers replaced, in order.

    Raises:
        ValueError: There is no MLP, or the layers cannot be told apart (a mixture of experts, two
            towers).
    """
    paths: dict[int, str] = {}
    for path, module in model.named_modules():
        if not _is_gated_mlp(module):
            continue
        numbers = [int(part) for part in path.split(".") if part.isdigit()]
        if len(numbers) != 1 or numbers[0] in paths:
            raise ValueError(
                f"cannot tell which layer {path!r} is: pass a part that has one MLP a layer"
            )
        paths[numbers[0]] = path
    if not paths:
        raise ValueError(
            "no MLP found: no module has gate_proj and up_proj, or gate_up_proj, and down_proj"
        )
    shared = _client_of(client)
    for layer, path in paths.items():
        parent, _, attribute = path.rpartition(".")
        remote = RemoteMLP(shared, name, layer, path=path)
        setattr(model.get_submodule(parent), attribute, remote)
    return tuple(sorted(paths))


def _client_of(server: Server) -> Client | Stream:
    return server if isinstance(server, Client | Stream) else Client(server)


def _unpickled(url: str | Sequence[str], model: str, layer: int | None, path: str) -> RemoteMLP:
    return RemoteMLP(url, model, layer, path=path)


def _is_gated_mlp(module: nn.Module) -> bool:
    children = {name for name, _ in module.named_children()}
    return "down_proj" in children and (
        "gate_up_proj" in children or {"gate_proj", "up_proj"} <= children
    )
