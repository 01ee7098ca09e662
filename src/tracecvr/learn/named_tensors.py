"""Tensors by name, as checkpoints and caches keep them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from torch import Tensor

from tracecvr.base.devices import array_of


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
