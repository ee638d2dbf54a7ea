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

from gatefuse.client.blocking import Client
from gatefuse.client.messages import InferenceError, Result
from gatefuse.client.transport.stream import Stream

Server: TypeAlias = Client | Stream | str | Sequence[str]
"""A client, or one of its streams; or ``HOST:PORT``, or several, for a client to be made of."""


class _Connection:
    """What modules share: a client or stream that they were given, or a client that is made of addresses.

    Copies share it too. One made of addresses is made anew where it is unpickled, once for all modules of a pickle.
    """

    def __init__(self, server: Server) -> None:
        self._url = None if isinstance(server, Client | Stream) else server
        self.client = server if isinstance(server, Client | Stream) else Client(server)

    def close(self) -> None:
        if self._url is not None:
            self.client.close()

    def __deepcopy__(self, memo: dict[int, Any]) -> _Connection:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        if self._url is None:
            raise TypeError(
                "a remote MLP was given a client, which cannot be pickled: give it HOST:PORT"
            )
        return _Connection, (self._url,)


DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class RemoteMLP(nn.Module):
    """Runs one layer of a served MLP. Holds no weights and has no gradient: it is for inference."""

    def __init__(
        self,
        client: Server | _Connection,
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
        self._connection = _shared(client)
        self.model = model
        self.layer = layer
        self.path = path

    @property
    def client(self) -> Client | Stream:
        """What the module calls: what it was given, or the client that was made of addresses."""
        return self._connection.client

    def close(self) -> None:
        """Closes a client that was made of addresses, for all modules and copies that share it.

        A client or stream that the module was given stays open.
        """
        self._connection.close()

    def extra_repr(self) -> str:
        """Returns what torch prints between the module's brackets."""
        return f"model={self.model!r}, layer={self.layer}"

    def forward(self, x: Tensor) -> Tensor:
        """Returns the MLP of ``x``: same shape, dtype and device.

        Args:
            x: [..., H] float32, float16 or bfloat16; elements travel as they are. No rows travel not at all.

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
        if 0 in x.shape[:-1]:
            return x.new_empty(x.shape)
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
            client that is made here is the attribute ``client`` of every module that it replaces, and ``close`` of
            any of these closes it. Only with addresses the model can be pickled: it connects anew where it is loaded.
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
    shared = _shared(client)
    for layer, path in paths.items():
        parent, _, attribute = path.rpartition(".")
        remote = RemoteMLP(shared, name, layer, path=path)
        setattr(model.get_submodule(parent), attribute, remote)
    return tuple(sorted(paths))


def _shared(client: Server | _Connection) -> _Connection:
    return client if isinstance(client, _Connection) else _Connection(client)


def _is_gated_mlp(module: nn.Module) -> bool:
    children = {name for name, _ in module.named_children()}
    return "down_proj" in children and (
        "gate_up_proj" in children or {"gate_proj", "up_proj"} <= children
    )
