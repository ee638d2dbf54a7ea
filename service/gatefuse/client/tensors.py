"""torch tensors to packed elements and back, without importing torch: who has a tensor has imported it."""

from __future__ import annotations

import sys
from typing import Any

from numpy.typing import NDArray

from gatefuse.wire import Datatype, convert

_TORCH_NAMES = {Datatype.FP32: "float32", Datatype.FP16: "float16", Datatype.BF16: "bfloat16"}
_DATATYPES = {name: datatype for datatype, name in _TORCH_NAMES.items()}


def is_tensor(x: object) -> bool:
    """Whether it is a torch tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def datatype_of(tensor: Any) -> Datatype:
    """Returns the datatype that carries such a tensor's values; float64 travels as FP32.

    Raises TypeError for any other dtype.
    """
    name = str(tensor.dtype).removeprefix("torch.")
    datatype = Datatype.FP32 if name == "float64" else _DATATYPES.get(name)
    if datatype is None:
        listed = ", ".join(_DATATYPES)
        raise TypeError(f"tensors of {name} cannot be sent: use {listed}, float64")
    return datatype


def encode(tensor: Any, datatype: Datatype) -> bytes:
    """Returns the elements as they travel, row-major, whatever the tensor's device and strides are."""
    source, elements = _on_host(tensor)
    return convert(elements, source, datatype).tobytes()


def encode_into(tensor: Any, datatype: Datatype, out: memoryview) -> None:
    """Writes the elements as ``encode`` returns them into memory of exactly their size."""
    source, elements = _on_host(tensor)
    convert(elements, source, datatype, out=out)


def _on_host(tensor: Any) -> tuple[Datatype, NDArray[Any]]:
    source = datatype_of(tensor)
    # numpy has no bfloat16: its bits go as integers.
    host = tensor.detach().to(_dtype(source)).cpu().contiguous().reshape(-1)
    integers = sys.modules["torch"].int16
    elements: NDArray[Any] = (host.view(integers) if source is Datatype.BF16 else host).numpy()
    return source, elements.view("u1")


def decode(content: bytes | memoryview, datatype: Datatype, like: Any) -> Any:
    """Returns a fresh tensor of the shape, device and dtype of ``like``; float32 for float64."""
    torch = sys.modules["torch"]
    dtype = torch.float32 if like.dtype is torch.float64 else like.dtype
    if not content:
        return torch.empty(like.shape, dtype=dtype, device=like.device)
    # torch.frombuffer shares the memory it is given, and a tensor must be free to change its own.
    answer = torch.frombuffer(bytearray(content), dtype=_dtype(datatype))
    return answer.reshape(like.shape).to(device=like.device, dtype=dtype)


def _dtype(datatype: Datatype) -> Any:
    return getattr(sys.modules["torch"], _TORCH_NAMES[datatype])
