"""A make-believe device: it really computes, by the processor's kernels, and refuses what a real device would refuse.

Its tensors call themselves `meta`. One that meets a tensor of the processor raises: even if that is a single number,
which a real device would take. So does one that is read through NumPy and, if asked for, one in double precision.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from tracecvr.base import devices
from tracecvr.learn import optimisers
from tracecvr.nets import fused

NAME = "meta"
_DEVICE = torch.device(NAME)
_SET_DATA = vars(torch._C.TensorBase)["data"].__set__


class FarTensor(Tensor):
    """A tensor of the device. `near` holds its numbers."""

    near: Tensor
    has_double = True

    @staticmethod
    def __new__(cls, near: Tensor) -> FarTensor:
        if near.dtype == torch.float64 and not cls.has_double:
            raise TypeError("the device has no double precision")
        place = near.stride(), near.storage_offset()
        made: FarTensor = Tensor._make_wrapper_subclass(cls, near.shape, *place, dtype=near.dtype, device=_DEVICE)
        made.near = near
        return made

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"far {self.near!r}"

    def tolist(self) -> Any:
        return self.near.tolist()

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == _SET_DATA:  # torch gives the wrapper another shape, and knows of no numbers
            args[0].near = args[1].near
        if func == Tensor.__getitem__ and isinstance(args[1], tuple):  # torch makes a tensor of a list, without numbers
            args = args[0], tuple(torch.tensor(one).to(NAME) if isinstance(one, list) else one for one in args[1])
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return _compute(func, args, kwargs or {})


class _MadeThere(TorchDispatchMode):
    """Makes the tensors that are asked for on the device, and those that are moved to it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _compute(func, args, kwargs or {})


class _MadeOfLists(TorchFunctionMode):
    """The same for `torch.tensor`, which torch leaves empty on its own device of this name."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.tensor and str((kwargs or {}).get("device")) == NAME:
            return func(*args, **kwargs | {"device": "cpu"}).to(NAME)
        return func(*args, **(kwargs or {}))


def _compute(func: Any, args: Any, kwargs: Any) -> Any:
    given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
    far = [one for one in given if isinstance(one, FarTensor)]
    strangers = [tuple(one.shape) for one in given if not isinstance(one, FarTensor)]
    if far and strangers and func.overloadpacket is not torch.ops.aten.copy_:
        raise RuntimeError(f"{func}: a tensor of the processor, of shape {strangers[0]}, meets one of the device")
    device = str(kwargs.get("device", NAME if far else "cpu"))
    same = {id(one.near if isinstance(one, FarTensor) else one): one for one in given}
    args, kwargs = tree_map_only(FarTensor, lambda one: one.near, (args, kwargs))
    with torch._C.DisableTorchFunction():  # what is made inside stays near
        result = func(*args, **(kwargs | {"device": "cpu"} if "device" in kwargs else kwargs))

    def place(near: Tensor) -> Tensor:
        if id(near) in same:  # an operation in place gives back what it was given
            return same[id(near)]
        return near if device == "cpu" else FarTensor(near)

    return tree_map_only(Tensor, place, result)


@contextmanager
def elsewhere(has_double: bool = True) -> Iterator[str]:
    """While it lasts, there is a device of this name."""
    with pytest.MonkeyPatch.context() as patch, _MadeOfLists(), _MadeThere():  # type: ignore[no-untyped-call]
        patch.setitem(devices._IS_HERE, NAME, lambda: True)
        patch.setattr(devices, "_WITHOUT_DOUBLE", () if has_double else (NAME,))
        patch.setattr(FarTensor, "has_double", has_double)
        yield NAME


def compute_as_elsewhere(patch: pytest.MonkeyPatch, has_double: bool = True) -> None:
    """Have the processor compute as another device does: with torch's plain forms of what nets are made of."""
    for module in (fused, optimisers):
        patch.setattr(module, "is_on_processor", lambda _: False)
    patch.setattr(devices, "_WITHOUT_DOUBLE", () if has_double else ("cpu",))
