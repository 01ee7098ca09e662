"""Where nets learn and score, on the processor or on a device beside it, and in which precision they learn.

What is made while `computing_on` is in force is made there, so code that makes tensors names no device. Arrays go there
by `torch.as_tensor`, back by `array_of`. Random numbers are drawn on the processor."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from tracecvr.base.errors import UserError

_IS_HERE: dict[str, Callable[[], bool]] = {
    "cuda": lambda: torch.cuda.is_available(),
    "mps": lambda: torch.backends.mps.is_available(),
    "cpu": lambda: True,
}
"""In the order in which `auto` takes them."""
_WITHOUT_DOUBLE = ("mps",)
PRECISIONS = ("auto", "float32", "bfloat16")


def choose(name: str) -> str:
    """The device of a name: of `auto`, the first that is here."""
    if name == "auto":
        return next(device for device, is_here in _IS_HERE.items() if is_here())
    if name not in _IS_HERE:
        raise UserError(f"option 'device' is {name!r}: choose one of auto, {', '.join(_IS_HERE)}")
    if not _IS_HERE[name]():
        raise UserError(
            f"option 'device' is {name!r}: torch {torch.__version__} finds no such device on this machine; choose auto "
            "or cpu, or install a torch that is built for it"
        )
    return name


def choose_precision(name: str, device: str) -> str:
    """The precision that a name stands for on a device: of `auto`, bfloat16 on processors with instructions for it.
    Other devices have float32."""
    if device != "cpu":
        return "float32"
    if name == "auto":
        return "bfloat16" if torch.cpu._is_avx512_bf16_supported() else "float32"
    return name


def computing_on(device: str) -> AbstractContextManager[Any]:
    """While it lasts, tensors are made on this device."""
    return nullcontext() if device == "cpu" else torch.device(device)


def is_on_processor(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu"


def array_of(tensor: Tensor) -> npt.NDArray[Any]:
    """The same numbers as an array; of a tensor on the processor, the same memory."""
    array: npt.NDArray[Any] = tensor.detach().cpu().numpy()
    return array


def double(tensor: Tensor) -> Tensor:
    """In double precision, where the device has it."""
    return tensor.float() if tensor.device.type in _WITHOUT_DOUBLE else tensor.double()


# Tensors by name, as checkpoints and caches keep them.


def digest(tensors: Mapping[str, Tensor]) -> str:
    """A hash of tensors with their names, types and shapes."""
    hashed = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        hashed.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        hashed.update(array_of(value.contiguous()).data)  # without a copy: tables may be large
    return hashed.hexdigest()


def on_processor(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors as files hold them."""
    return {name: value.cpu().contiguous() for name, value in tensors.items()}


def under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with a prefix, without it."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
