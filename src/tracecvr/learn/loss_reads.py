"""What a loss may read of its method or plugin, by its code: two trainings that read the same have the same result.

The names in the code of a loss, and of whatever it may call, are those of all that it reads and of more: so what is
shared is never wrong. Authors declare nothing. A net is called by its name in the code, or by the name that a loss is
given, which is that of the net in training. The part itself is called `self`.
"""

from __future__ import annotations

import dis
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from itertools import pairwise
from types import CodeType, FunctionType
from typing import Any

from torch import Tensor, nn

from tracecvr.authoring.part import Part
from tracecvr.learn.named_tensors import digest


class UnknownValueError(Exception):
    """Something may be read that cannot be compared between runs."""


def values_read(part: Part, loss: str, trained: str, counts: Mapping[str, Tensor]) -> dict[str, Any]:
    """The values of all that a loss of this name may read while it trains one net, in a form that can be compared.

    Of a function it counts where it is defined. Of a property its value counts, not what it is computed from.
    """
    words, attributes = _named_in(part, loss)
    nets = [name for name in part.nets if name != trained and (name in words or "nets" in attributes)]
    read: dict[str, Any] = {f"net {name}": digest(part.nets[name].state_dict()) for name in nets}
    for name in sorted(words):
        if functions := _definitions(part, name):
            read[name] = [f"{one.__module__}.{one.__qualname__}" for one in functions]
    for name in sorted(attributes - read.keys() - {"caller", "name", "nets"}):  # messages have the name of the part
        value = getattr(part, name, None)
        if value is not part.nets[trained]:
            read[name] = digest(counts) if name == "counts" else _comparable(value)
    return read


def _named_in(part: Part, loss: str) -> tuple[set[str], set[str]]:
    """In the code of a loss and of all functions that it may call: every name and text, and attributes of `self`.

    A function outside the part may be given `self` under another name, so all its names count as attributes.
    """
    words, attributes = {loss}, set[str]()
    todo, done = list(_definitions(part, loss)), set[FunctionType]()
    while todo:
        function = todo.pop()
        done.add(function)
        here = set(_words(function.__code__))
        own = function in _definitions(part, function.__name__)
        attributes |= set(_attributes(function.__code__)) if own else here
        words |= here
        called = {one for word in here for one in (*_definitions(part, word), function.__globals__.get(word))}
        todo += {one for one in called if isinstance(one, FunctionType)} - done
    return words, attributes


def _words(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, CodeType):
            yield from _words(constant)


def _attributes(code: CodeType) -> Iterator[str]:
    for loaded, then in pairwise(dis.get_instructions(code)):
        if loaded.argval == "self" and then.opname in {"LOAD_ATTR", "LOAD_METHOD"}:
            yield then.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _attributes(constant)


def _definitions(part: Part, name: str) -> list[FunctionType]:
    """A function of a part: in its class, and in those that `super()` leads to."""
    known = (vars(cls).get(name) for cls in type(part).__mro__)
    return [one for one in known if isinstance(one, FunctionType)]


def _comparable(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, Tensor | nn.Module):
        return digest({"": value} if isinstance(value, Tensor) else value.state_dict())
    if isinstance(value, tuple | list):
        return [_comparable(one) for one in value]
    if is_dataclass(value) and not isinstance(value, type):
        return [type(value).__qualname__, *(_comparable(getattr(value, f.name)) for f in fields(value))]
    raise UnknownValueError(f"a value of type {type(value).__name__}")
