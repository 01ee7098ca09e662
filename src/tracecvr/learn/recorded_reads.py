"""What a loss reads of its method or plugin: recorded while a net is trained with it.

The training of a net follows from the net, the history and what the loss reads. So two trainings that would read the
same values have the same result, to the bit. Authors of methods need not declare what their losses depend on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor

from tracecvr.authoring.part import Net, Part
from tracecvr.learn.named_tensors import digest
from tracecvr.stream.reveal import LabelledReveals

Loss = Callable[[LabelledReveals], Tensor]

_CALLED = "call "
"""Before the name of a net that the loss has called."""


class UnknownValueError(Exception):
    """Something was read that cannot be compared between runs."""


def recorded(part: Part, loss: Loss) -> tuple[Loss, set[str]]:
    """The same loss, and a set to which each call adds the names of what it reads of the part.

    Of a property its value counts, not what it is computed from. Of a function it counts where it is defined; what the
    function itself reads is added, too.
    """
    names: set[str] = set()
    plain, caller, inside = type(part), part.caller, False

    def read(self: Part, name: str) -> Any:
        nonlocal inside
        if inside or name.startswith("__"):
            return plain.__getattribute__(self, name)
        if name == "caller":
            return called
        names.add(name)
        inside = isinstance(getattr(plain, name, None), property)
        try:
            return plain.__getattribute__(self, name)
        finally:
            inside = False

    def called(net: Net, inputs: tuple[Tensor, ...]) -> Tensor:
        if isinstance(net, str):
            names.add(_CALLED + net)
        return caller(net, inputs)

    recording = type(plain.__name__, (plain,), {"__getattribute__": read})

    def watched(b: LabelledReveals) -> Tensor:
        part.__class__ = recording
        try:
            return loss(b)
        finally:
            part.__class__ = plain

    return watched, names


def facts_of(part: Part, names: Iterable[str], trained: str, counts: Mapping[str, Tensor]) -> dict[str, Any]:
    """The values of what was read, in a form that can be compared: for the training of one net, from these counts.

    Raises `AttributeError` if the part has no such thing, and `UnknownValueError` if a value cannot be compared.
    """

    def state(net: str) -> str | None:
        return None if net == trained else digest(part.nets[net].state_dict())

    def fact(name: str) -> Any:
        if name == "counts":
            return digest(counts)
        if name == "nets":
            return {net: state(net) for net in part.nets}
        if (net := name.removeprefix(_CALLED)) in part.nets and net != name:
            return state(net)
        if name not in vars(part) and callable(getattr(type(part), name, None)):
            return definitions(part, name)
        value = getattr(part, name)
        own = [state(net) for net, module in part.nets.items() if module is value]
        return own or _comparable(value)

    return {name: fact(name) for name in sorted(names)}


def definitions(part: Part, name: str) -> list[str]:
    """Where a function of a part is defined: in its class, and in those that `super()` leads to."""
    return [f"{cls.__module__}.{cls.__qualname__}" for cls in type(part).__mro__ if name in vars(cls)]


def _comparable(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, Tensor):
        return digest({"": value})
    if isinstance(value, tuple | list):
        return [_comparable(one) for one in value]
    if is_dataclass(value) and not isinstance(value, type):
        return [type(value).__qualname__, *(_comparable(getattr(value, f.name)) for f in fields(value))]
    raise UnknownValueError(f"a value of type {type(value).__name__}")
