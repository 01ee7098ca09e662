"""Methods, plugins, datasets and backbones of yours, known by name in this process."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from torch import nn

from tracecvr.authoring.method import Method, Plugin
from tracecvr.base import registry
from tracecvr.base.errors import UserError
from tracecvr.base.registry import Given
from tracecvr.data.dataset import Dataset

T = TypeVar("T", bound=type)

_KINDS: dict[type, str] = {Method: "method", Plugin: "plugin", Dataset: "dataset", nn.Module: "backbone"}


def register(cls: T) -> T:
    """Make a class known by its `name` in this process; usable as a decorator. Worker processes do not know it: give
    them a file, or make it an entry point.

    Examples
    --------
    >>> from tracecvr.methods.vanilla import Vanilla
    >>> @register
    ... class Patient(Vanilla):
    ...     name = "patient"
    >>> "patient" in registry.available("method")
    True
    >>> registry.unregister("method", "patient")
    """
    registry.register(_kind(cls), cls)
    return cls


def name_of(given: str | Path | type) -> str:
    """The name of a method or plugin: given as such, by its file, or by its class."""
    if isinstance(given, type):
        kind = _kind(given)
        if registry.available(kind).get(getattr(given, "name", "")) is not given:
            registry.register(kind, given)
        return str(given.name)  # type: ignore[attr-defined]
    return Given(given)


def _kind(cls: type) -> str:
    kind = next((kind for base, kind in _KINDS.items() if issubclass(cls, base)), None)
    if kind is None or not isinstance(vars(cls).get("name"), str):
        raise UserError(f"{cls.__name__}: expected a Method, a Plugin, a Dataset or a torch module, with a `name`")
    return kind
