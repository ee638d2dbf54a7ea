"""A torch module whose MLP runs on a server, and the swap that puts it into a transformers model.

replace_mlps(model, "localhost:8001", "llama-ffn")
model.generate(...)
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gatefuse.client import Client
from gatefuse.messages import Rows, flat_shape
from gatefuse.wire import Datatype

_DATATYPES = {
    torch.float32: Datatype.FP32,
    torch.float16: Datatype.FP16,
    torch.bfloat16: Datatype.BF16,
}
_TORCH_DTYPES = {datatype: dtype for dtype, datatype in _DATATYPES.items()}


class RemoteMLP(nn.Module):
    """Runs one layer of a served MLP. Holds no weights and has no gradient: it is for inference."""

    def __init__(self, client: Client | str, model: str, layer: int | None = None) -> None:
        """Connects at the first call.

        Args:
            client: A client, which several modules may share, or the server's ``HOST:PORT``.
            model: The served model's name.
            layer: Which of its layers; None for the server's choice.
        """
        super().__init__()
        self.client = Client(client) if isinstance(client, str) else client
        self.model = model
        self.layer = layer

    def extra_repr(self) -> str:
        """Returns what torch prints between the module's brackets."""
        return f"model={self.model!r}, layer={self.layer}"

    def forward(self, x: Tensor) -> Tensor:
        """Returns the MLP of ``x``: same shape, dtype and device.

        Args:
            x: [..., H] float32, float16 or bfloat16; elements travel as they are.

        Raises:
            gatefuse.client.InferenceError: The call was not answered.
            RuntimeError: A gradient is asked for.
            TypeError: Another dtype.
        """
        if x.requires_grad and torch.is_grad_enabled():
            raise RuntimeError(
                "a remote MLP has no gradient: call the model under torch.inference_mode()"
            )
        datatype = _DATATYPES.get(x.dtype)
        if datatype is None:
            raise TypeError(f"a remote MLP takes float32, float16 or bfloat16, not {x.dtype}")
        rows = Rows(_packed(x), flat_shape(tuple(x.shape)), datatype)
        raw = self.client.infer_rows(self.model, rows, layer=self.layer)
        if not raw.content:
            return torch.empty_like(x)
        # torch.frombuffer shares the memory it is given, and a tensor must be free to change its
        # own.
        answer = torch.frombuffer(bytearray(raw.content), dtype=_TORCH_DTYPES[raw.datatype])
        return answer.reshape(x.shape).to(device=x.device, dtype=x.dtype)


def replace_mlps(model: nn.Module, client: Client | str, name: str) -> tuple[int, ...]:
    """Replaces the MLP of every decoder layer by a remote one, in place.

    An MLP is a module with the children ``gate_proj``, ``up_proj`` and ``down_proj``, or
    ``gate_up_proj`` and ``down_proj``; its layer is the number in its path, such as 3 in
    ``model.layers.3.mlp``.

    Args:
        model: A transformers model of the Llama kind. The weights of its MLPs are let go.
        client: A client, which all layers then share, or the server's ``HOST:PORT``.
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
    shared = Client(client) if isinstance(client, str) else client
    for layer, path in paths.items():
        parent, _, attribute = path.rpartition(".")
        setattr(model.get_submodule(parent), attribute, RemoteMLP(shared, name, layer))
    return tuple(sorted(paths))


def _packed(x: Tensor) -> bytes:
    host = x.detach().contiguous().cpu().reshape(-1)
    if host.dtype is torch.bfloat16:
        # numpy has no bfloat16: its bits travel as they are.
        host = host.view(torch.int16)
    packed: bytes = host.numpy().tobytes()
    return packed


def _is_gated_mlp(module: nn.Module) -> bool:
    children = {name for name, _ in module.named_children()}
    return "down_proj" in children and (
        "gate_up_proj" in children or {"gate_proj", "up_proj"} <= children
    )
